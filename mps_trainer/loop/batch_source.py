"""Gives a run the batches of its epochs, and owns the random numbers that training and loading draw."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any

from ..checkpoints.rng import BEFORE_EPOCH, BEFORE_WAITING, OF_LOADING, ORDER_SEED, generators_of, rng_state, set_rng
from ..data.epoch_loader import PrefetchIterator, epoch_batches, order_of
from ..data.faults import explain_worker

logger = logging.getLogger(__name__)


class BatchSource:
    """Gives the batches of an epoch from any batch on, and owns the random states. `Position` alone uses it.

    Training and loading draw from the same generators, and loading is one batch ahead. A checkpoint therefore has
    three states:

    1. before the epoch: its order and its workers' seeds are drawn from this state;
    2. before the prefetched batch: it is loaded from this state;
    3. at the checkpoint: training draws its next number from this state.

    `load_state_dict` sets the third at once, and nothing else restores random numbers in a resumed run. That run
    repeats some work inside `rng_restored_if_resumed`, which afterwards puts the generators back: it loads the
    prefetched batch, for which `begin_pass` sets the first two states, and fires events that were fired before the
    checkpoint.

    A checkpoint of transformers has the third state alone. As in transformers, the order of the epoch and the batches
    of the first update are then drawn from the states that the generators had before the resume. The generators of
    workers cannot be read from this process: workers load the batches of the epoch again.

    Args:
        loader: any iterable of batches. Those that `prepare_loader` returns load one batch ahead.
        takes_order_seed: False if a checkpoint does not decide the seed of the order, because `data_seed` does.
    """

    def __init__(self, loader: Any, takes_order_seed: bool = True) -> None:
        self.loader = loader
        self._takes_order_seed = takes_order_seed
        self._generators = generators_of(loader)
        self._batches: Iterator[Any] | None = None  # the pass under way
        self._before_epoch: dict[str, Any] | None = None
        self._before_resume: dict[str, Any] | None = None  # None as long as no random states were loaded
        self._of_loading: dict[str, Any] | None = None  # saved states, until an epoch begins from them

    # A pass over the loader

    def begin_pass(self, epoch: int, skip: int, count: int) -> Iterator[Any]:
        """Returns the batches of an epoch without the first `skip`; usually they are loaded one ahead of training.

        Args:
            count: the batches of the first update.
        """
        saved = self._of_loading or {}
        if not skip or (not saved and self._before_resume is None):
            self._before_epoch = rng_state(self._generators)
            batches = self._batches = epoch_batches(self.loader, epoch, skip)
        else:
            with self.rng_restored_if_resumed():
                batches = self._load_again(epoch, skip, count, saved)
        self._of_loading = None
        return batches

    def _load_again(self, epoch: int, skip: int, count: int, saved: dict[str, Any]) -> Iterator[Any]:
        """Returns the batches of an epoch that had begun, after loading those that were loaded before."""
        before_epoch = saved.get(BEFORE_EPOCH)
        if before_epoch is not None and getattr(self.loader, "num_workers", 0) > 0:
            logger.info(
                "Loading the first %d batches of the epoch again to restore the random state of the workers.", skip
            )
        if (begin := before_epoch or self._before_resume) is not None:
            set_rng(begin, self._generators)
        before = rng_state(self._generators)
        # a checkpoint of transformers does not have the states before the epoch: workers start anew, as there
        batches = epoch_batches(self.loader, epoch, skip, load_skipped=before_epoch is not None)
        self._batches = batches  # set before anything is loaded, so that `explain` and `close` know it
        first: list[Any] = []
        if not saved:
            first = list(itertools.islice(batches, count))
        elif isinstance(batches, PrefetchIterator):
            batches.begin()
            waiting = saved.get(BEFORE_WAITING)
            if waiting is not None:
                set_rng(waiting, self._generators)
            if waiting is not None or BEFORE_WAITING not in saved:  # loading that draws nothing records no states
                batches.load_ahead()
        self._before_epoch = before
        return itertools.chain(first, batches) if first else batches

    @contextlib.contextmanager
    def rng_restored_if_resumed(self) -> Iterator[None]:
        """Puts the generators back after what a resumed run repeats. A run that has not resumed keeps all draws."""
        if self._before_resume is None:
            yield
            return
        drawn = rng_state(self._generators)
        try:
            yield
        finally:
            set_rng(drawn, self._generators)

    def restore_epoch_start(self) -> None:
        """Sets the generators to where they were before the epoch, whose first batch failed to load."""
        if self._before_epoch is not None:
            set_rng(self._before_epoch, self._generators)

    def record_before_batches(self, wanted: bool) -> None:
        """Records the generators' states before each batch if `wanted`, because a checkpoint may follow (0.04 ms).

        They are always recorded where loading draws, which takes longer: a callback may save at any step.
        """
        if isinstance(self._batches, PrefetchIterator):
            self._batches.records = wanted or self._batches.draws

    def explain(self, error: Exception) -> None:
        """Adds the number of the dead worker to `error` if a worker of the loader died."""
        explain_worker(error, self._batches)

    def close(self) -> None:
        """Ends the pass over the loader."""
        if isinstance(self._batches, PrefetchIterator):
            self._batches.close()

    # Saving and resuming

    def state_dict(self) -> dict[str, Any]:
        """Returns the states of the generators now, and those that loading drew from."""
        return {**rng_state(self._generators), **self._loading_state()}

    def load_state_dict(self, saved: dict[str, Any] | None, load_rng: Callable[[], None] | None = None) -> None:
        """Sets the generators to where they were at the checkpoint.

        Args:
            saved: None for a checkpoint without random states.
            load_rng: an override that sets them instead.
        """
        before = rng_state(self._generators)
        self._restart_pass(saved)
        if load_rng is not None:
            load_rng()
            set_rng({**(saved or {}), **rng_state()}, self._generators)  # the loader's own, which it does not know
        elif saved is not None:
            set_rng(saved, self._generators)
        if saved is not None or load_rng is not None:
            self._before_resume = before

    def snapshot(self, with_loading: bool) -> dict[str, Any]:
        """Returns the states of the generators; `with_loading` also those that loading drew from."""
        return self.state_dict() if with_loading else rng_state(self._generators)

    def restore(self, saved: dict[str, Any], with_loading: bool) -> None:
        """Sets the generators. `with_loading` ends the pass over the loader, which then starts from `saved` again."""
        if with_loading:
            self._restart_pass(saved)
        set_rng(saved, self._generators)

    def _loading_state(self) -> dict[str, Any]:
        if self._of_loading is not None:  # the run has only just resumed from it
            return self._of_loading
        kept: dict[str, Any] = {BEFORE_EPOCH: self._before_epoch}
        if (order := order_of(self.loader)) is not None:
            kept[ORDER_SEED] = order.seed
        if not isinstance(self._batches, PrefetchIterator):
            kept[BEFORE_WAITING] = None
        elif self._batches.before_waiting is not None:
            kept[BEFORE_WAITING] = self._batches.before_waiting
        return kept

    def _restart_pass(self, saved: dict[str, Any] | None) -> None:
        """Ends the pass; the next starts from `saved`. Batches that were loaded ahead are dropped."""
        self.close()
        self._batches = None
        self._of_loading = None if saved is None else {name: saved[name] for name in OF_LOADING if name in saved}
        seed, order = (self._of_loading or {}).get(ORDER_SEED), order_of(self.loader)
        if seed is not None and order is not None and self._takes_order_seed:
            order.seed = seed
