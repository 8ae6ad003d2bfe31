"""Saves the random state of data loading in a checkpoint, so that a resumed run draws the same numbers."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

from ..checkpoints.rng import BEFORE_EPOCH, BEFORE_WAITING, ORDER_SEED, rng_state, set_rng
from .faults import explain_worker
from .loader import PrefetchIterator, epoch_batches, order_of

logger = logging.getLogger(__name__)


class DataRngState:
    """Begins the epochs of `loader`, and records the states of the generators from which loading draws.

    An order that comes from torch's global generator, and a collator that draws from it, would otherwise differ in a
    resumed run. Workers' generators cannot be read from this process: the epoch is loaded again for them.
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
        if self._batches is None and self._saved:  # the run has only just resumed from it
            names = (BEFORE_EPOCH, ORDER_SEED, BEFORE_WAITING)
            return {name: self._saved[name] for name in names if name in self._saved}
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
        return not isinstance(self._batches, PrefetchIterator) or self._batches.is_resumable

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

        This ends the current pass; batches that it has loaded ahead are dropped.
        """
        self.close()
        self._batches, self._saved = None, saved or {}
        if ORDER_SEED in self._saved and (order := order_of(self.loader)) is not None:
            order.seed = self._saved[ORDER_SEED]

    def begin(self, epoch: int, skip: int, restore_rng: Callable[[], None]) -> Iterator[Any]:
        """Returns the batches of `epoch` without the first `skip`.

        Args:
            restore_rng: restores the generators from the checkpoint, in time for the first batch's step. Not called
                for a checkpoint of transformers: as transformers does, the caller restores them once the first
                update's batches are loaded.
        """
        saved, self._saved = (self._saved if skip else {}), {}
        before_epoch, waiting = saved.get(BEFORE_EPOCH), saved.get(BEFORE_WAITING)
        if before_epoch is not None:
            set_rng(before_epoch)
            if skip and getattr(self.loader, "num_workers", 0):
                logger.info(
                    "Loading the first %d batches of the epoch again to restore the random state of the workers.", skip
                )
        self._before_epoch = before_epoch or rng_state()
        before_first = None
        if BEFORE_WAITING in saved:
            before_first = restore_rng if waiting is None else functools.partial(set_rng, waiting)
        # a checkpoint of transformers does not have the states before the epoch: workers start anew, as there
        self._batches = epoch_batches(self.loader, epoch, skip, before_first, load_skipped=before_epoch is not None)
        if isinstance(self._batches, PrefetchIterator) and waiting is not None:
            self._batches.start()
            restore_rng()
        return self._batches

    def watch(self, wanted: bool) -> None:
        """Records the generators' states before each batch if `wanted`, because a checkpoint may follow (0.04 ms).

        They are always recorded where loading draws, which takes longer: a callback may save at any step.
        """
        if isinstance(self._batches, PrefetchIterator):
            self._batches.records = wanted or self._batches.draws
