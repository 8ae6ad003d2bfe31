"""Declares the fields of the arguments: `learning_rate: float = option(5e-5, "Peak learning rate.", ge=0)`.

A field has its type, default, help and argparse's keywords as every dataclass for `HfArgumentParser` does.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import MisconfigurationException
from .readers import reader_of, refuse

_Class = TypeVar("_Class", bound=type)


@dataclass(frozen=True)
class NotSupported:
    """Refuses some values of a field of transformers: `values`, or all values outside `unless` if there are none."""

    why: str
    instead: str
    values: tuple[str, ...] = ()
    unless: tuple[Any, ...] = (None, False, "", [], {})

    def concerns(self, value: Any) -> bool:
        if not self.values:
            return value not in self.unless
        return any(each in self.values for each in (value if isinstance(value, list) else [value]))


@dataclass(frozen=True)
class Declaration:
    """Everything that a class says about a field.

    Attributes:
        words: those that it accepts; None: others as well.
        optional: True if None is a value of its type.
        read: converts a value to the type of the field, unless given by that type.
        ge: a number is at least this; None: the field has no bounds.
        le: it is at most this.
        lt: it is below this.
        refused: values that transformers has and this package does not support.
        becomes: the field that takes the value of a deprecated one, or the values that others take; {} if the field is
            accepted and ignored.
    """

    name: str
    help: str
    words: Sequence[str] | None
    optional: bool
    read: Callable[[str, Any], Any]
    ge: float | None = None
    le: float = math.inf
    lt: float = math.inf
    refused: tuple[NotSupported, ...] = ()
    becomes: str | Mapping[str, Any] | None = None

    def convert(self, value: Any) -> Any:
        """Returns `value` as the field's type. Raises MisconfigurationException for one that it does not accept."""
        value = self.read(self.name, value)
        if value is not None and self.words is not None and value not in self.words:
            raise refuse(self.name, value, "one of " + ", ".join(self.words))
        if value is not None and self.ge is not None and not (self.ge <= value <= self.le and value < self.lt):
            least = f"at least {self.ge}" + (f" and below {self.lt}" if self.lt < math.inf else "")
            raise refuse(self.name, value, least if self.le == math.inf else f"between {self.ge} and {self.le}")
        for refusal in self.refused:
            if refusal.concerns(value):
                raise MisconfigurationException(
                    f"{self.name}={getattr(value, 'value', value)!r} is not supported: {refusal.why}. "
                    f"{refusal.instead}."
                )
        return value


# They are not in the metadata of a field, all of which HfArgumentParser passes to argparse.
_RULES: dict[dataclasses.Field[Any], dict[str, Any]] = {}


def option(default: Any, help: str, *, kw_only: Any = dataclasses.MISSING, **more: Any) -> Any:
    """Returns a dataclass field with a default and the text that `--help` shows.

    Args:
        kw_only: True for a field that transformers does not have: it comes after transformers' in the signature.
        more: attributes of `Declaration` from `read` on, and argparse's own keywords, which reach it as they are.
    """
    names = {"read", "ge", "le", "lt", "refused", "becomes"} & more.keys()
    rules: dict[str, Any] = {name: more.pop(name) for name in names}
    if isinstance(rules.get("refused"), NotSupported):
        rules["refused"] = (rules["refused"],)
    field = dataclasses.field(default=default, kw_only=kw_only, metadata={"help": help, **more})
    _RULES[field] = rules
    return field


@functools.cache
def declarations(kind: Any) -> dict[str, Declaration]:
    """Returns the declaration of each field of a dataclass."""
    hints = typing.get_type_hints(kind)
    return {
        field.name: Declaration(
            name=field.name,
            help=field.metadata.get("help", ""),
            words=field.metadata.get("choices"),
            optional=type(None) in typing.get_args(hints[field.name]),
            **{"read": reader_of(hints[field.name]), **_RULES.get(field, {})},
        )
        for field in dataclasses.fields(kind)
    }


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Returns the default of a field, made by its factory if it has one."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def documented(kind: _Class) -> _Class:
    """Adds type, default and help of each field to the docstring of a dataclass, before "Raises:"."""
    head, raises, tail = inspect.cleandoc(kind.__doc__ or "").partition("Raises:")
    fields = sorted(dataclasses.fields(kind), key=lambda field: field.kw_only is True)  # the order of the signature
    # HfArgumentParser puts the classes into field.type
    types = {name: text for base in reversed(kind.__mro__) for name, text in inspect.get_annotations(base).items()}
    lines = []
    for field in fields:
        lines.append(f"    {field.name} ({types[field.name]}, default {default_of(field)!r}):")
        lines.append(f"        {field.metadata['help']}")
    kind.__doc__ = "\n".join([f"{head}Args:", *lines, "", raises + tail])
    return kind
