"""Detects a terminal for progress bars, and drops output that cannot be written."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any


def on_terminal() -> bool:
    """Returns True if bars can be drawn: stderr is a terminal with columns that moves its cursor (not TERM=dumb)."""
    if sys.stderr is None or _is_closed(sys.stderr):
        return False
    if not getattr(sys.stderr, "isatty", bool)() or os.environ.get("TERM") == "dumb":
        return False
    with contextlib.suppress(Exception):  # a stream of a script's own may have no number
        return os.get_terminal_size(sys.stderr.fileno()).columns > 0  # Docker's -t and expect give 0
    return True


@contextlib.contextmanager
def lost_output_ignored() -> Iterator[None]:
    """Drops what sys.stdout and sys.stderr cannot write inside, so that print, tqdm and logging do not raise.

    The reader of a pipe may have ended (`| head -1`, or `tee` after Ctrl-C), the terminal may be closed, or the disk
    full.
    """
    put: dict[str, LossyStream] = {}
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name, None)
        if stream is not None and not isinstance(stream, LossyStream):
            put[name] = LossyStream(stream)
            setattr(sys, name, put[name])
    try:
        yield
    finally:
        for name, lossy in put.items():
            lossy.flush()
            # a tracker that has replaced `write` to see what is printed would see no more of it
            if getattr(sys, name, None) is lossy and vars(lossy).keys() == {"stream"}:
                setattr(sys, name, lossy.stream)


class LossyStream:
    """Wraps a text stream and drops what it cannot write."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["stream"], name)

    def write(self, text: str) -> int:
        try:
            try:
                self.stream.write(text)
            except UnicodeEncodeError:  # a folder's name may have letters that the locale has not
                self.stream.write(text.encode("ascii", "backslashreplace").decode())
        except (OSError, ValueError) as error:
            self._drop(error)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            getattr(self.stream, "flush", lambda: None)()  # a stream of a script's own may have no more than write()
        except (OSError, ValueError) as error:
            self._drop(error)

    def _drop(self, error: OSError | ValueError) -> None:
        if isinstance(error, OSError):
            if error.errno not in _PASSING:
                let_go(self.stream)
        elif not _is_closed(self.stream):
            raise error


_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.EINTR)  # the next write may succeed


def let_go(stream: Any) -> None:
    """Redirects a stream without a reader to os.devnull, because Python flushes it again at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        number = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        if null != number:
            os.dup2(null, number)
            os.close(null)


def _is_closed(stream: Any) -> bool:
    try:
        return bool(getattr(stream, "closed", False))
    except ValueError:  # detached
        return True
