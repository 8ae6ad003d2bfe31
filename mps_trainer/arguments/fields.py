"""Declares the fields of the arguments."""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import dataclass
from typing import Any, TypeVar

_Class = TypeVar("_Class", bound=type)


@dataclass(frozen=True)
class Bounds:
    """The numbers that a field accepts: from `ge` on, up to `le`, or below `lt`."""

    ge: float
    le: float | None = None
    lt: float | None = None

    def __contains__(self, value: float) -> bool:
        return value >= self.ge and (self.le is None or value <= self.le) and (self.lt is None or value < self.lt)

    def __str__(self) -> str:
        if self.le is not None:
            return f"between {self.ge} and {self.le}"
        return f"at least {self.ge}" + ("" if self.lt is None else f" and below {self.lt}")


class Help(str):
    """The text that `--help` shows for a field, with the field's bounds.

    The bounds have no key of their own in the field's metadata, because argparse refuses keys that it does not know.
    """

    bounds: Bounds | None = None


def option(
    default: Any,
    help: str,
    *,
    ge: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    kw_only: Any = dataclasses.MISSING,
    **metadata: Any,
) -> Any:
    """Returns a dataclass field with a default and the text that `--help` shows.

    Args:
        ge: the lowest number that is accepted; None for any.
        le: the highest number, beside `ge`.
        lt: the number that values stay below, beside `ge`.
        kw_only: True for a field that transformers does not have: it comes after transformers' in the signature.
        metadata: argparse's own keywords, which reach it as they are.
    """
    text = Help(help)
    if ge is not None:
        text.bounds = Bounds(ge, le, lt)
    return dataclasses.field(default=default, kw_only=kw_only, metadata={"help": text, **metadata})


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Returns the default of a field, made by its factory if it has one."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def documented(kind: _Class) -> _Class:
    """Adds type, default and help of each field to the docstring of a dataclass, before "Raises:"."""
    head, raises, tail = inspect.cleandoc(kind.__doc__ or "").partition("Raises:")
    fields = sorted(dataclasses.fields(kind), key=lambda field: field.kw_only is True)  # the order of the signature
    # not field.type, where HfArgumentParser puts the classes
    types = {name: text for base in reversed(kind.__mro__) for name, text in inspect.get_annotations(base).items()}
    lines = (
        f"    {f.name} ({types[f.name]}, default {default_of(f)!r}):\n        {f.metadata['help']}" for f in fields
    )
    kind.__doc__ = "\n".join([f"{head}Args:", *lines, "", raises + tail])
    return kind


def bounds_of(field: dataclasses.Field[Any]) -> Bounds | None:
    """Returns the bounds of a field that `option` declared, or None."""
    return getattr(field.metadata.get("help"), "bounds", None)
