"""Prepares the worker processes of a DataLoader: which signals they ignore, and which random numbers they draw.

PyTorch seeds a worker once, when it starts. Workers that persist draw on from pass to pass. In a resumed run they
would have to load every batch since the first to draw the same numbers. Nor do they learn of `set_epoch`.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch.utils.data import _DatasetKind
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from ..guards.signals import leave_signals_to_main_process
from .order import set_epoch


class WorkerInit:
    """The `worker_init_fn` of a prepared loader. Workers that persist are seeded anew in each pass.

    Args:
        then: the loader's own `worker_init_fn`, which is called as well.
        seed: the seed of the run; None for workers that live for one pass, which keep PyTorch's seeds.
    """

    def __init__(self, then: Any, seed: int | None = None, rank: int = 0) -> None:
        self.then, self.seed, self.rank = then, seed, rank
        # workers read this shared memory when a pass begins, when PyTorch sends them nothing from the loader
        self._pass = None if seed is None else torch.zeros(2, dtype=torch.int64, device="cpu").share_memory_()

    def begin_pass(self, number: int, epoch: int) -> None:
        """Sets the number of the pass in the main process. In pass 0 the workers keep PyTorch's seeds."""
        if self._pass is not None:
            self._pass.copy_(torch.tensor([number, epoch], device="cpu"))

    def __call__(self, worker: int) -> None:
        leave_signals_to_main_process()
        if self.then is not None:
            self.then(worker)
        if (shared := self._pass) is None:
            return
        make = _DatasetKind.create_fetcher  # this worker's process calls it when a pass begins

        def seed_and_make(kind: Any, dataset: Any, *settings: Any) -> Any:
            number, epoch = shared.tolist()
            if number > 0:
                entropy = [(self.seed or 0) % 2**64, self.rank, number, worker]
                seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
                random.seed(seed)
                np.random.seed(seed)
                torch.manual_seed(seed)
                set_epoch(epoch, dataset)
            return make(kind, dataset, *settings)

        _DatasetKind.create_fetcher = staticmethod(seed_and_make)  # type: ignore[method-assign]


def close_workers(*loaders: Any, only_idle: bool = False) -> None:
    """Ends the worker processes that loaders with `persistent_workers` keep; a later pass starts others.

    Left to garbage collection they take up to 5 s each, because the queues that tell them to end may be gone first.

    Args:
        only_idle: leaves workers alone that are in the middle of a pass.
    """
    for loader in loaders:
        iterator = getattr(loader, "_iterator", None)
        if not isinstance(iterator, _MultiProcessingDataLoaderIter) or (only_idle and iterator._tasks_outstanding):
            continue
        loader._iterator = None
        end_pass(iterator)


def end_pass(iterator: Any) -> None:
    """Ends the worker processes of a pass over a loader. After an error in one, the traceback would keep them."""
    if isinstance(iterator, _MultiProcessingDataLoaderIter):
        iterator._shutdown_workers()
