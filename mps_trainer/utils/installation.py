"""Says how to install this package with all that it needs."""

from __future__ import annotations

import shlex
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def how_to_install(package: Path = PACKAGE) -> str:
    """Returns a sentence with the command, from a clone or for an installation that lacks packages.

    Args:
        package: the folder of the package.
    """
    is_clone = (package.parent / "setup.cfg").is_file()
    what = f"-e {shlex.quote(str(package.parent))}" if is_clone else "mps_trainer"
    return f"Install what mps_trainer needs, in a virtual environment: python -m pip install {what}"
