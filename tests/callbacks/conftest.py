"""A terminal in this process: what a run draws there, and how wide it was."""

import fcntl
import functools
import os
import pty
import re
import struct
import sys
import termios
import threading

import pytest


class Screen:
    """stdout and stderr are a terminal of `columns` from here on; `text` is what was written, after `end`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, columns: int = 80) -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.columns, self._terminal, self._bytes = columns, ours, b""
        self._file = os.fdopen(theirs, "w", encoding="utf-8", buffering=1)
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(sys, "stdout", self._file)
        monkeypatch.setattr(sys, "stderr", self._file)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def end(self) -> str:
        self._file.flush()
        self._monkeypatch.undo()
        self._file.close()
        self._reader.join(10)
        os.close(self._terminal)
        self.text = self._bytes.decode().replace("\r\n", "\n")
        return self.text

    def drawn(self) -> list[str]:
        """Each thing that was written between two returns of the cursor, without what moves it."""
        return [re.sub(r"\x1b\[[A-Z]", "", part) for part in re.split(r"[\r\n]", self.text)]

    def widest_bar(self) -> int:
        return max(len(part) for part in self.drawn() if re.search(r"\d+%", part))

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._terminal, 65536)
            except OSError:  # on Linux, that the other end is closed
                return
            if not piece:
                return
            self._bytes += piece


@pytest.fixture
def terminal(monkeypatch):
    """Makes one; a second one would need a test of its own."""
    monkeypatch.delenv("TERM", raising=False)

    return functools.partial(Screen, monkeypatch)
