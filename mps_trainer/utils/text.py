"""Formats values, errors, names and amounts of memory for messages of one line."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable
from typing import Any

LONGEST = 1000  # characters of a line, which may quote a whole file


def as_line(text: str, longest: int = LONGEST) -> str:
    """Returns `text` on one line of at most `longest` characters, with control characters written out."""
    line = " ".join(text[: 10 * longest].split())
    # a lone surrogate cannot be encoded, an escape sequence would colour or clear the screen
    line = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line)
    return line if len(line) <= longest else line[: longest - 3] + "..."


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, or its type if it has no message."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def sentence(error: BaseException, longest: int = 400) -> str:
    """Returns the message of a library's error, or its type, as one line that ends in a full stop."""
    line = as_line(str(error), longest) or type(error).__name__
    return line if line.endswith(".") else line + "."


def shown(value: Any, longest: int = 500) -> str:
    """Returns the repr of `value` on one line of at most `longest` characters, with the first items of a container.

    A few lines of YAML can hold a list of 2**30 numbers, and Python refuses to print a number of 5000 digits.
    """
    short = _Repr()
    short.maxlevel, short.maxstring, short.maxother = 3, longest, longest
    return as_line(short.repr(value), longest)


class _Repr(reprlib.Repr):
    def repr_int(self, value: int, level: int) -> str:
        try:
            return repr(value)
        except ValueError:
            return f"<a number of {value.bit_length()} bits>"


def choice_text(choice: Any) -> str:
    """Returns an argument's value as text, whether it is an enum's member or a string."""
    return str(getattr(choice, "value", choice))


def counted(number: int, one: str, several: str = "") -> str:
    """Returns "1 call" or "2,000 calls" for `one="call"`; `several` is the plural if it does not end in s."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def format_bytes(size: float) -> str:
    """Returns a size in words: "1.5 KiB" for 1536."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns a question that names the nearest known word or flag, after a space; "" if none is near."""
    names = {each.removeprefix("--"): each for each in known}  # dashes alone do not make two flags alike
    near = difflib.get_close_matches(word.removeprefix("--"), names, n=1)
    return f" Did you mean {names[near[0]]}?" if near else ""
