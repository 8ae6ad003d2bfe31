"""Finds the user's folders. A container with an unknown user id has no home folder."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import MisconfigurationException


def in_home(path: str | Path) -> Path | None:
    """Returns `path` with ~ replaced by the home folder, or None if it begins with ~ and there is no such folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # HOME is not set, and the user id is unknown
        return None


def named(flag: str, path: str) -> Path:
    """Returns the path given for a flag with ~ replaced. Raises MisconfigurationException without a home folder."""
    if (found := in_home(path)) is None:
        raise MisconfigurationException(f"{flag} {path}: there is no such home folder. Write the path without ~.")
    return found


def cache_folder() -> Path | None:
    """Returns the folder for files that are made once per torch version. It may not exist yet.

    $MPS_TRAINER_CACHE, or `mps_trainer` under $XDG_CACHE_HOME or under `~/.cache`; None for a user without a home.
    """
    own = os.environ.get("MPS_TRAINER_CACHE")
    return in_home(own or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "mps_trainer")
