"""What ends the script with one line and no traceback."""

from __future__ import annotations


class UserError(Exception):
    """Something that the person who typed the command can put right; the message says how."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type where it has none."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip() if lines else type(error).__name__
