"""Ends a failed command with one line on stderr and an exit status, without a traceback."""

from __future__ import annotations

import os
import sys

from .text import as_line, sentence

TRACEBACK = "MPS_TRAINER_TRACEBACK"  # set to 1: every refusal comes with its traceback
WRONG_INPUT = 2  # the user can correct the command
FAILED = 1  # a run that had begun
UNFORESEEN = 1  # Python exits so after an uncaught error
INTERRUPTED = 130  # 128 plus the number of SIGINT, as in shells


def refuse(program: str, error: BaseException, status: int = WRONG_INPUT, instead: str | None = None) -> int:
    """Prints on stderr why `program` cannot continue, after the traceback if MPS_TRAINER_TRACEBACK=1.

    Args:
        instead: a text to print instead of the error's own message.

    Returns:
        `status`, the exit status of the command.
    """
    if wants_traceback():
        import traceback

        traceback.print_exception(error)
    print(f"{program}: error: {as_line(instead or str(error) or type(error).__name__)}", file=sys.stderr)
    return status


def refuse_unforeseen(program: str, error: BaseException) -> int:
    """Prints an unexpected error on stderr: its type, its message, and how to get the traceback."""
    hint = "" if wants_traceback() else f" Set {TRACEBACK}=1 to see the traceback."
    return refuse(program, error, UNFORESEEN, f"{type(error).__name__}: {sentence(error)}{hint}")


def wants_traceback() -> bool:
    return os.environ.get(TRACEBACK, "").strip().lower() not in ("", "0", "false", "no")
