"""Ends a failed command with one line on stderr and an exit status, without a traceback."""

from __future__ import annotations

import os
import sys

from .text import as_line

TRACEBACK = "MPS_TRAINER_TRACEBACK"  # set to 1: every refusal comes with its traceback
WRONG_INPUT = 2  # the user can correct the command
FAILED = 1  # a run that had begun, or an unforeseen error, as in Python
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


def wants_traceback() -> bool:
    return os.environ.get(TRACEBACK, "").strip().lower() not in ("", "0", "false", "no")
