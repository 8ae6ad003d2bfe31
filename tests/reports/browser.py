"""Chromium without a window: what a page draws, says on its console and looks like."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests import HUNG_AFTER

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    *("--hide-scrollbars", "--enable-logging=stderr", "--v=0"),
)


def find() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass(frozen=True)
class Seen:
    """Holds a page as the browser shows it: its elements after all scripts have run, and the lines of its console."""

    elements: str
    console: list[str]


def look(
    page: Path, folder: Path, width: int = 1200, height: int = 900, dark: bool = False, picture: Path | None = None
) -> Seen:
    """Opens the file `page` with a new profile in `folder`.

    Args:
        picture: where to put what it looks like, as PNG with two pixels for each of width and height.
    """
    program = find()
    assert program is not None
    wanted = [f"--screenshot={picture}", "--force-device-scale-factor=2"] if picture is not None else ["--dump-dom"]
    theme = ["--blink-settings=preferredColorScheme=0"] if dark else ["--blink-settings=preferredColorScheme=1"]
    command = [program, *_QUIET, *theme, *wanted, "--virtual-time-budget=5000", f"--window-size={width},{height}"]
    command += [f"--user-data-dir={folder / 'profile'}", page.resolve().as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HUNG_AFTER)
    assert done.returncode == 0, done.stderr
    return Seen(done.stdout, re.findall(r":CONSOLE[^\]]*\] (.*)", done.stderr))
