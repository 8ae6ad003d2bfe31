"""The folder of this user for what is made once per torch version and can be made again."""

from __future__ import annotations

import os
from pathlib import Path

from .home import in_home


def cache_folder() -> Path | None:
    """$MPS_TRAINER_CACHE, or `mps_trainer` under $XDG_CACHE_HOME, or under `~/.cache`; None for a user without a home.

    It need not exist yet.
    """
    own = os.environ.get("MPS_TRAINER_CACHE")
    if own:
        return in_home(own)
    return in_home(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "mps_trainer")
