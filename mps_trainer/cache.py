"""The folder of this user for what is made once per torch version and can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$MPS_TRAINER_CACHE, or `mps_trainer` under $XDG_CACHE_HOME, or under `~/.cache`. It need not exist yet."""
    own = os.environ.get("MPS_TRAINER_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "mps_trainer"
