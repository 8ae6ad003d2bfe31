"""Keeps a Mac awake while it trains."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def awake(wanted: bool) -> Iterator[None]:
    """Prevents idle sleep inside with macOS's `caffeinate`, if `wanted` and on macOS. The display may turn off.

    caffeinate ends with this process too (-w), so a Mac may sleep again after a run that was killed.
    """
    process = None
    if wanted and sys.platform == "darwin":
        with contextlib.suppress(OSError):
            process = subprocess.Popen(
                ["caffeinate", "-i", "-w", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            logger.info("The Mac stays awake while it trains (keep_awake). Closing the lid still puts it to sleep.")
    try:
        yield
    finally:
        if process is not None:
            process.terminate()
            process.wait()
