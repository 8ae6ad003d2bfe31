"""A program in a terminal of its own, and somebody who types into it."""

import os
import pty
import select
import signal
import subprocess
import time

PATIENCE = 60  # seconds that an answer may take; an import of torch is in it


class Terminal:
    """Starts a command on a pseudo-terminal, so that it prompts, echoes and is interrupted as it is for a user."""

    def __init__(self, command: list[str], environ: dict[str, str]) -> None:
        ours, theirs = pty.openpty()
        # the terminal is the session's, or Ctrl-C would reach nobody
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True, preexec_fn=_adopt
        )
        os.close(theirs)
        self._terminal, self.screen, self._read_to = ours, "", 0

    def sees(self, text: str) -> None:
        """Waits until `text` is on the screen, below what was waited for before."""
        until = time.monotonic() + PATIENCE
        while (at := self.screen.find(text, self._read_to)) < 0:
            if time.monotonic() > until or not self._read():
                self.process.kill()
                raise AssertionError(f"never saw {text!r}:\n{self.screen}")
        self._read_to = at + len(text)

    def types(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def interrupts(self) -> None:
        """Ctrl-C. A moment after the prompt: Python misses one that comes before it has begun to read."""
        time.sleep(0.3)
        self.types("\x03")

    def ends(self) -> int:
        """The exit status, once the program has ended and its screen is complete."""
        while self._read():
            pass
        os.close(self._terminal)
        return self.process.wait(PATIENCE)

    def _read(self) -> bool:
        if not select.select([self._terminal], [], [], PATIENCE)[0]:
            return False
        try:
            text = os.read(self._terminal, 4096)
        except OSError:  # on Linux, that nobody has the other end open any more
            return False
        self.screen += text.decode().replace("\r\n", "\n")
        return bool(text)


def _adopt() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which a shell that runs the tests in the background has ignored
