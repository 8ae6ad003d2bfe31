"""Running Python in a process of its own, which is how a test gives the libraries another hub."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

# Progress bars, and what huggingface_hub says about each of the five retries of a failed request.
_CHATTER = re.compile(r"\d+%\||\?it/s|^HTTP Error \d+ thrown|^Retrying in |^$")


@dataclass(frozen=True)
class Finished:
    """A process that has ended."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def messages(self) -> list[str]:
        """The lines of stderr, without progress bars and the client's notes about retries."""
        return [line for line in re.split(r"[\r\n]+", self.stderr) if not _CHATTER.search(line)]


def run_python(*arguments: str, env: dict[str, str], cwd: Path | None = None, timeout: float = 300) -> Finished:
    """Run `python ARGUMENTS` to its end; raises subprocess.TimeoutExpired after `timeout` seconds."""
    start = time.monotonic()
    process = subprocess.run(
        [sys.executable, *arguments], env=env, cwd=cwd, timeout=timeout, capture_output=True, text=True
    )
    return Finished(process.returncode, process.stdout, process.stderr, time.monotonic() - start)
