"""Random numbers in a loader's worker processes that depend on the batch alone.

A worker's generators go on from batch to batch, so what an augmentation draws would depend on which batches the worker
had before: a run resumed in the middle of an epoch would draw other numbers. Here each batch begins with a seed of its
own, made of the epoch's and of its number, whoever loads it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


class SeededBatches:
    """What `sampler` gives, so that the generators are seeded in the worker that receives it, before it loads.

    Args:
        sampler: of batches of indices, or of single ones.
        first: the number in its epoch of what it gives first.
    """

    def __init__(self, sampler: Any, first: int = 0) -> None:
        self.sampler = sampler
        self.first = first

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        # the state that the epoch begins with, which a checkpoint keeps; nothing is drawn from it
        epoch = hashlib.blake2b(torch.get_rng_state().numpy().tobytes(), digest_size=8).digest()
        for number, indices in enumerate(self.sampler, self.first):
            yield _Seeding(indices, epoch + number.to_bytes(8, "little"))


class _Seeding:
    """Arrives as `indices` where it is unpickled, and seeds the generators there: in a worker, when it is its turn."""

    def __init__(self, indices: Any, key: bytes) -> None:
        self.indices = indices
        self.key = key

    def __reduce__(self) -> tuple[Any, tuple[Any, bytes]]:
        return _seeded, (self.indices, self.key)


def _seeded(indices: Any, key: bytes) -> Any:
    seed = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.manual_seed(seed)
    return indices
