"""Running Python in a process of its own, which is how a test gives the libraries another hub."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

# Progress bars, what huggingface_hub says about each of its retries, and Python's warnings with their line of source.
_PROGRESS = re.compile(r"\d+%\||\?it/s|^\s*$")
_RETRY = re.compile(r"HTTP Error \d+ thrown while requesting|Retrying in [\d.]+s")
_WARNING = re.compile(r"^\S+:\d+: \w*Warning: .*\n(  .*\n)?", re.MULTILINE)


@dataclass(frozen=True)
class Finished:
    """A process that has ended."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def messages(self) -> list[str]:
        """The lines of stderr that say what the program itself has to say: no progress, retries or warnings."""
        lines = re.split(r"[\r\n]+", _WARNING.sub("", self.stderr))
        return [line for line in lines if not _PROGRESS.search(line) and not _RETRY.search(line)]


def run_python(*arguments: str, env: dict[str, str], cwd: Path | None = None, timeout: float = 300) -> Finished:
    """Run `python ARGUMENTS` to its end; raises subprocess.TimeoutExpired after `timeout` seconds."""
    start = time.monotonic()
    process = subprocess.run(
        [sys.executable, *arguments], env=env, cwd=cwd, timeout=timeout, capture_output=True, text=True
    )
    return Finished(process.returncode, process.stdout, process.stderr, time.monotonic() - start)
