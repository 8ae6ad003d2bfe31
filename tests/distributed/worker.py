"""One of several processes: makes all scenarios, or those named, and leaves what came of them in a folder."""

from __future__ import annotations

import os
import sys
import traceback

import torch

from tests.distributed import messages, sharding, signals  # noqa: F401  add their scenarios
from tests.distributed.scenarios import SCENARIOS

if __name__ == "__main__":
    folder, names = sys.argv[1], sys.argv[2:] or list(SCENARIOS)
    rank = os.environ["RANK"]
    for name in names:
        try:
            came = SCENARIOS[name](os.path.join(folder, name))
        except Exception:
            came = {"error": traceback.format_exc()}
        torch.save(came, os.path.join(folder, f"{name}-{rank}.pt"))
