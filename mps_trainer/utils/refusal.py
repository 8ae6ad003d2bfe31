"""Ends a failed command with one line on stderr and an exit status, without a traceback."""

from __future__ import annotations

import difflib
import os
import reprlib
import sys
from collections.abc import Iterable
from typing import Any

TRACEBACK = "MPS_TRAINER_TRACEBACK"  # set to 1: every refusal comes with its traceback
WRONG_INPUT = 2  # the user can correct the command
FAILED = 1  # a run that had begun
UNFORESEEN = 1  # as Python exits after an uncaught error
INTERRUPTED = 130  # 128 plus the number of SIGINT, as in shells

LONGEST = 1000  # characters of a line, which may quote a whole file


def refuse(program: str, error: BaseException, status: int = WRONG_INPUT, instead: str | None = None) -> int:
    """Prints on stderr why `program` cannot continue, after the traceback if MPS_TRAINER_TRACEBACK=1.

    Args:
        instead: a text to print instead of the error's own message.

    Returns:
        `status`, the exit status of the command.
    """
    print_traceback_if_asked(error)
    print(f"{program}: error: {as_line(instead or str(error) or type(error).__name__)}", file=sys.stderr)
    return status


def refuse_unforeseen(program: str, error: BaseException) -> int:
    """Prints an unexpected error on stderr: its type, its message, and how to get the traceback."""
    print_traceback_if_asked(error)
    hint = "" if wants_traceback() else f" Set {TRACEBACK}=1 to see the traceback."
    print(f"{program}: error: {type(error).__name__}: {sentence(error)}{hint}", file=sys.stderr)
    return UNFORESEEN


def wants_traceback() -> bool:
    return os.environ.get(TRACEBACK, "").strip().lower() not in ("", "0", "false", "no")


def print_traceback_if_asked(error: BaseException) -> None:
    if wants_traceback():
        import traceback

        traceback.print_exception(error)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns a question that names the nearest known word or flag, after a space; "" if none is near."""
    names = {each.removeprefix("--"): each for each in known}  # dashes alone do not make two flags alike
    near = difflib.get_close_matches(word.removeprefix("--"), names, n=1)
    return f" Did you mean {names[near[0]]}?" if near else ""


def as_line(text: str, longest: int = LONGEST) -> str:
    """Returns `text` on one line of at most `longest` characters, with control characters written out."""
    line = " ".join(text[: 10 * longest].split())
    # a lone surrogate cannot be encoded, an escape sequence would colour or clear the screen
    line = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line)
    return line if len(line) <= longest else line[: longest - 3] + "..."


def sentence(error: BaseException, longest: int = 400) -> str:
    """Returns the message of a library's error, or its type, as one line that ends in a full stop."""
    line = as_line(str(error), longest) or type(error).__name__
    return line if line.endswith(".") else line + "."


def shown(value: Any) -> str:
    """Returns the repr of `value`, shortened in the middle if it is long.

    A few lines of YAML can hold a list of 2**30 numbers, and Python refuses to print a number of 5000 digits.
    """
    if isinstance(value, (dict, list, tuple, set)):
        return _SHORT.repr(value)
    text = _digits(value) if isinstance(value, int) else repr(value)
    return text if len(text) <= 500 else f"{text[:100]}...{text[-50:]}"


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlong, self.maxstring, self.maxother = 3, 100, 100, 100

    def repr_int(self, value: int, level: int) -> str:
        return as_line(_digits(value), self.maxlong)


_SHORT = _Short()


def _digits(number: int) -> str:
    try:
        return repr(number)
    except ValueError:  # more digits than Python is willing to write
        return f"<a number of {number.bit_length()} bits>"
