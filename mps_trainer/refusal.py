"""Ends a command that cannot do its work: one line on stderr and an exit status, no traceback."""

from __future__ import annotations

import os
import reprlib
import sys
from typing import Any

TRACEBACK = "MPS_TRAINER_TRACEBACK"  # set to 1: every refusal comes with its traceback
WRONG_INPUT = 2  # the person who typed the command can put it right
FAILED = 1  # a run that had begun
UNFORESEEN = 1  # as Python's own for an uncaught error
INTERRUPTED = 130  # 128 and the number of SIGINT, as shells have it

LONGEST = 1000  # characters of a line: a file may be quoted in it, and may be of one line


def refuse(program: str, error: BaseException, status: int = WRONG_INPUT, instead: str | None = None) -> int:
    """Says on stderr why `program` cannot go on, with the traceback before it if MPS_TRAINER_TRACEBACK=1.

    Args:
        instead: what to say in place of the error's own message.

    Returns:
        `status`, for the command to end with.
    """
    print_traceback_if_asked(error)
    print(f"{program}: error: {as_line(instead or str(error) or type(error).__name__)}", file=sys.stderr)
    return status


def refuse_unforeseen(program: str, error: BaseException) -> int:
    """Says on stderr that an error came that no check foresaw: its type, and how to get the traceback."""
    print_traceback_if_asked(error)
    hint = "" if wants_traceback() else f" {TRACEBACK}=1 shows where it comes from."
    print(f"{program}: error: {type(error).__name__}: {sentence(error)}{hint}", file=sys.stderr)
    return UNFORESEEN


def wants_traceback() -> bool:
    return os.environ.get(TRACEBACK, "").strip().lower() not in ("", "0", "false", "no")


def print_traceback_if_asked(error: BaseException) -> None:
    if wants_traceback():
        import traceback

        traceback.print_exception(error)


def as_line(text: str, longest: int = LONGEST) -> str:
    """Returns `text` on one line of at most `longest` characters, with control characters written out."""
    line = " ".join(text[: 10 * longest].split())
    # a lone surrogate cannot be encoded, an escape sequence would colour or clear the screen
    line = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line)
    return line if len(line) <= longest else line[: longest - 3] + "..."


def sentence(error: BaseException, longest: int = 400) -> str:
    """Returns the message of a library's error as one line that ends in a full stop; its type if it has none."""
    line = as_line(str(error), longest) or type(error).__name__
    return line if line.endswith(".") else line + "."


def shown(value: Any) -> str:
    """Returns `value` as Python writes it, cut off in the middle if that is long.

    A few lines of YAML can be a list of 2**30 numbers, and a number of 5000 digits cannot be written at all.
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
