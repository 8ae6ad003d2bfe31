"""Paths in the user's home folder, which a container that runs as an unknown user id does not have."""

from __future__ import annotations

from pathlib import Path

from .errors import MisconfigurationException


def in_home(path: str | Path) -> Path | None:
    """Returns `path` with ~ replaced by the home folder, or None if it begins with ~ and there is no such folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # HOME is not set, and the user id is unknown
        return None


def named(flag: str, path: str) -> Path:
    """Returns the path that a flag named, with ~ replaced. Raises MisconfigurationException without such a home."""
    if (found := in_home(path)) is None:
        raise MisconfigurationException(f"{flag} {path}: there is no such home folder. Write the path without ~.")
    return found
