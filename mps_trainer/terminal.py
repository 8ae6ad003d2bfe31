"""Whether there is a terminal to draw on."""

from __future__ import annotations

import os
import sys


def on_terminal() -> bool:
    """Whether bars can be drawn: stderr is a terminal that moves its cursor, which one with TERM=dumb does not."""
    return bool(sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb")
