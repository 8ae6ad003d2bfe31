"""Whether there is a terminal to draw on, and what native code writes to it."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator


def on_terminal() -> bool:
    """Whether bars can be drawn: stderr is a terminal that moves its cursor, which one with TERM=dumb does not."""
    return bool(sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb")


@contextlib.contextmanager
def without_lines(text: str) -> Iterator[None]:
    """Inside, stderr is kept back, also what is written past Python; lines with `text` in them never come.

    Made for a moment: a process that dies inside takes with it what it has written there.
    """
    with contextlib.ExitStack() as stack:
        try:
            kept = stack.enter_context(tempfile.TemporaryFile())
            stderr = os.dup(2)
        except OSError:  # there is no stderr, or nowhere to keep it
            yield
            return
        stack.callback(os.close, stderr)
        _flush()
        os.dup2(kept.fileno(), 2)
        try:
            yield
        finally:
            _flush()
            os.dup2(stderr, 2)
            kept.seek(0)
            with contextlib.suppress(OSError):
                os.write(stderr, b"".join(line for line in kept if text.encode() not in line))


def _flush() -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
