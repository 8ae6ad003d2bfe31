"""Seeds worker processes that persist, in each pass, so that a pass does not depend on the passes before.

PyTorch seeds a worker once, when it starts. Workers that persist draw on from pass to pass, and those of a resumed run
would have to load every batch since the first to come to the same numbers. Nor do they hear of `set_epoch`.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch.utils.data import _DatasetKind

from .order import tell_epoch


class WorkerSeeds:
    """The `worker_init_fn` of a loader with `persistent_workers`: seeds Python's, NumPy's and torch's generators.

    Args:
        then: another such function, which is called first.
        seed: of the run.
        rank: of this process among those that train together.

    Attributes:
        purpose: tells the draws of one loader from those of another; 0 for training.
    """

    purpose = 0

    def __init__(self, then: Any, seed: int, rank: int = 0) -> None:
        self.then, self.seed, self.rank = then, seed, rank
        # in shared memory, which the workers read when a pass begins; PyTorch sends them nothing of the loader's then
        self._pass = torch.zeros(2, dtype=torch.int64).share_memory_()

    def begin(self, number: int, epoch: int) -> None:
        """Sets the number of the pass in the main process. In pass 0 the workers keep PyTorch's seeds."""
        self._pass.copy_(torch.tensor([number, epoch]))

    def __call__(self, worker: int) -> None:
        if self.then is not None:
            self.then(worker)
        make = _DatasetKind.create_fetcher  # of this worker's process alone, which calls it when a pass begins

        def begin_and_make(kind: Any, dataset: Any, *settings: Any) -> Any:
            number, epoch = self._pass.tolist()
            if number > 0:
                self._seed(number, worker)
                tell_epoch(epoch, dataset)
            return make(kind, dataset, *settings)

        _DatasetKind.create_fetcher = staticmethod(begin_and_make)  # type: ignore[method-assign]

    def _seed(self, number: int, worker: int) -> None:
        entropy = [self.seed % 2**64, self.rank, self.purpose, number, worker]
        seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
