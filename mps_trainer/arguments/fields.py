"""Declares the fields of the arguments.

A field has its type, default, help and argparse's keywords as every dataclass for `HfArgumentParser` does. What
else there is to say about its values stands in its annotation, which `typing.get_type_hints` leaves out:
`Annotated[float, Accepts(ge=0)]`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import MisconfigurationException
from .readers import reader_of, refuse

_Class = TypeVar("_Class", bound=type)


@dataclass(frozen=True)
class Accepts:
    """The numbers that a field accepts, from `ge` on, up to `le`, or below `lt`; or the function that reads values.

    Without `read`, the type of the field decides.
    """

    ge: float | None = None
    le: float | None = None
    lt: float | None = None
    read: Callable[[str, Any], Any] | None = None

    def __contains__(self, value: float) -> bool:
        return (
            (self.ge is None or value >= self.ge)
            and (self.le is None or value <= self.le)
            and (self.lt is None or value < self.lt)
        )

    def __str__(self) -> str:
        if self.le is not None:
            return f"between {self.ge} and {self.le}"
        return f"at least {self.ge}" + ("" if self.lt is None else f" and below {self.lt}")


@dataclass(frozen=True)
class NotSupported:
    """Refuses some values of a field that transformers has: `values`, or without them all but those of `unless`."""

    why: str
    instead: str
    values: tuple[str, ...] = ()
    unless: tuple[Any, ...] = (None, False, "", [], {})

    def concerns(self, value: Any) -> bool:
        if not self.values:
            return value not in self.unless
        return any(each in self.values for each in (value if isinstance(value, list) else [value]))


@dataclass(frozen=True)
class Deprecated:
    """The field that a deprecated one has become, and the value it stands for; None for the same value.

    Without `by`, the field is accepted and ignored.
    """

    by: str = ""
    value: Any = None


@dataclass(frozen=True)
class Declaration:
    """Everything that the class says about a field."""

    name: str
    help: str
    words: list[str] | None
    accepts: Accepts
    read: Callable[[str, Any], Any]
    optional: bool
    refused: tuple[NotSupported, ...]
    deprecated: Deprecated | None

    def convert(self, value: Any) -> Any:
        """Returns `value` as the field's type. Raises MisconfigurationException for one that it does not accept."""
        value = self.read(self.name, value)
        if value is not None and self.words is not None and value not in self.words:
            raise refuse(self.name, value, "one of " + ", ".join(self.words))
        if value is not None and value not in self.accepts:
            raise refuse(self.name, value, str(self.accepts))
        for refusal in self.refused:
            if refusal.concerns(value):
                raise MisconfigurationException(
                    f"{self.name}={getattr(value, 'value', value)!r} is not supported: {refusal.why}. "
                    f"{refusal.instead}."
                )
        return value


def option(default: Any, help: str, *, kw_only: Any = dataclasses.MISSING, **metadata: Any) -> Any:
    """Returns a dataclass field with a default and the text that `--help` shows.

    Args:
        kw_only: True for a field that transformers does not have: it comes after transformers' in the signature.
        metadata: argparse's own keywords, which reach it as they are.
    """
    return dataclasses.field(default=default, kw_only=kw_only, metadata={"help": help, **metadata})


@functools.cache
def declarations(kind: Any) -> dict[str, Declaration]:
    """Returns the declaration of each field of a dataclass."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: _declaration(field, hints[field.name]) for field in dataclasses.fields(kind)}


def _declaration(field: dataclasses.Field[Any], hint: Any) -> Declaration:
    hint, *marks = typing.get_args(hint) if typing.get_origin(hint) is typing.Annotated else (hint,)
    accepts = next((mark for mark in marks if isinstance(mark, Accepts)), Accepts())
    return Declaration(
        name=field.name,
        help=field.metadata.get("help", ""),
        words=field.metadata.get("choices"),
        accepts=accepts,
        read=accepts.read or reader_of(hint),
        optional=type(None) in typing.get_args(hint),
        refused=tuple(mark for mark in marks if isinstance(mark, NotSupported)),
        deprecated=next((mark for mark in marks if isinstance(mark, Deprecated)), None),
    )


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Returns the default of a field, made by its factory if it has one."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def type_name(annotation: str) -> str:
    """Returns an annotation as its author wrote it, without what `Annotated` adds."""
    return re.sub(r"^Annotated\[\s*(.+?), [A-Z]\w+[(,].*\]$", r"\1", annotation, flags=re.DOTALL)


def documented(kind: _Class) -> _Class:
    """Adds type, default and help of each field to the docstring of a dataclass, before "Raises:".

    Its signature, which `help` shows, has the plain types as well.
    """
    head, raises, tail = inspect.cleandoc(kind.__doc__ or "").partition("Raises:")
    fields = sorted(dataclasses.fields(kind), key=lambda field: field.kw_only is True)  # the order of the signature
    # HfArgumentParser puts the classes into field.type
    types = {name: text for base in reversed(kind.__mro__) for name, text in inspect.get_annotations(base).items()}
    types = {name: type_name(text) for name, text in types.items()}
    kind.__init__.__annotations__ = {  # type: ignore[misc]
        name: types.get(name, text)
        for name, text in kind.__init__.__annotations__.items()  # type: ignore[misc]
    }
    lines = []
    for field in fields:
        lines.append(f"    {field.name} ({types[field.name]}, default {default_of(field)!r}):")
        lines.append(f"        {field.metadata['help']}")
    kind.__doc__ = "\n".join([f"{head}Args:", *lines, "", raises + tail])
    return kind
