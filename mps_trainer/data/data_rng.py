"""Saves the random state of data loading in a checkpoint, so that a resumed run draws the same numbers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from ..checkpoints.rng import BEFORE_EPOCH, BEFORE_WAITING, ORDER_SEED, rng_state, set_rng
from .faults import explain_worker
from .loader import PrefetchIterator, epoch_batches, order_of

logger = logging.getLogger(__name__)


class DataRngState:
    """Begins the epochs of `loader`, and remembers under which states of the generators it drew.

    An order that comes from torch's global generator, and a collator that draws from it, would otherwise differ in a
    resumed run. The generators of worker processes are not here to be asked: the epoch is loaded again for them.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._batches: Iterator[Any] | None = None
        self._before_epoch: dict[str, Any] | None = None
        self._saved: dict[str, Any] = {}

    def explain(self, error: Exception) -> None:
        """Adds the number of the dead worker to `error` if a worker of the loader died."""
        explain_worker(error, self._batches)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint."""
        if self._batches is None and self._saved:  # of a run that has only just gone on from one
            return {
                name: self._saved[name] for name in (BEFORE_EPOCH, ORDER_SEED, BEFORE_WAITING) if name in self._saved
            }
        kept: dict[str, Any] = {BEFORE_EPOCH: self._before_epoch}
        if (order := order_of(self.loader)) is not None:
            kept[ORDER_SEED] = order.seed
        if not isinstance(self._batches, PrefetchIterator):
            kept[BEFORE_WAITING] = None
        elif self._batches.before_waiting is not None:
            kept[BEFORE_WAITING] = self._batches.before_waiting
        return kept

    @property
    def may_stop(self) -> bool:
        """Returns True if a run resumed from a checkpoint of this moment draws the same numbers."""
        return not isinstance(self._batches, PrefetchIterator) or self._batches.may_be_left

    def close(self) -> None:
        """Ends the pass."""
        if isinstance(self._batches, PrefetchIterator):
            self._batches.close()

    def restore_epoch_start(self) -> None:
        """Restores the generators to the start of the epoch after its first batch failed to load."""
        if self._before_epoch is not None:
            set_rng(self._before_epoch)

    def load_state_dict(self, saved: dict[str, Any] | None) -> None:
        """Loads `saved` from a checkpoint. A checkpoint of transformers does not have it, which is accepted.

        The pass that was begun ends, and what was loaded in it is not trained on.
        """
        self.close()
        self._batches, self._saved = None, saved or {}
        order = order_of(self.loader)
        if order is not None and ORDER_SEED in self._saved:
            order.seed = self._saved[ORDER_SEED]

    def begin(self, epoch: int, skip: int, go_on: Callable[[], None]) -> Iterator[Any]:
        """Returns the batches of `epoch` without the first `skip`.

        Args:
            go_on: sets the generators to where the checkpoint was made, in time for the first batch's step. Not
                called for a checkpoint that does not say how it loaded: transformers sets them once it has loaded
                the first update's batches, and the caller of this does so too.
        """
        saved, self._saved = (self._saved if skip else {}), {}
        if saved.get(BEFORE_EPOCH) is not None:
            set_rng(saved[BEFORE_EPOCH])
        self._before_epoch = saved.get(BEFORE_EPOCH) or rng_state()
        before_first, waiting = None, saved.get(BEFORE_WAITING)
        if BEFORE_WAITING in saved:
            before_first = go_on if waiting is None else lambda: set_rng(waiting)
        # a checkpoint of transformers does not say where workers began: it is gone on from as there
        exactly = saved.get(BEFORE_EPOCH) is not None
        if exactly and skip and getattr(self.loader, "num_workers", 0):
            logger.info(
                "Loading the first %d batches of the epoch again to restore the random state of the workers.", skip
            )
        self._batches = epoch_batches(self.loader, epoch, skip, before_first, exactly)
        if isinstance(self._batches, PrefetchIterator) and waiting is not None:
            self._batches.start()
            go_on()
        return self._batches

    def watch(self, wanted: bool) -> None:
        """Remembers the state before each batch ahead if `wanted`: 0.04 ms, so only where a checkpoint may follow."""
        if isinstance(self._batches, PrefetchIterator):
            # always where loading draws, which takes longer: a callback may ask for a checkpoint at any step
            self._batches.snapshot = rng_state if wanted or self._batches.draws else None
