"""What ends the script with one line and no traceback."""

from __future__ import annotations


class UserError(Exception):
    """Something that the person who typed the command can put right; the message says how."""


LONGEST = 400  # characters; some libraries' messages are pages


def one_line(error: BaseException) -> str:
    """The message of a library's error as one line that ends in a full stop, or its type where it has none."""
    text = " ".join(str(error).split()) or type(error).__name__
    if len(text) > LONGEST:
        text = text[: LONGEST - 3] + "..."
    return text if text.endswith(".") else text + "."
