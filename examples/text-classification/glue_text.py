"""Checks text for every kind of file."""

from __future__ import annotations

# A text beyond this is no text of a row: an open quote has swallowed the rest of the file, or it is no table at all.
LONGEST_TEXT = 1_000_000  # characters


def fault_of(text: str) -> str | None:
    """Returns why `text` is not a valid line or cell, or None for valid text."""
    if "\0" in text:
        return "a NUL byte, so this is not plain text. Save the file as UTF-8 text."
    if len(text) > LONGEST_TEXT:
        return (
            f"a text of {len(text)} characters, and at most {LONGEST_TEXT} are read as one. Put each example on a "
            "line of its own, and shorten what is longer."
        )
    return None
