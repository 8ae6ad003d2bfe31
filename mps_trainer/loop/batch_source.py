"""Gives a run its batches, and after a resume the random numbers with which the first run drew and loaded them."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator
from typing import Any

from ..checkpoints.rng import (
    BEFORE_EPOCH,
    BEFORE_WAITING,
    OF_LOADING,
    ORDER_SEED,
    generators_of,
    read_rng,
    rng_state,
    set_rng,
)
from ..data.epoch_loader import PrefetchIterator, epoch_batches, order_of
from ..data.faults import explain_worker
from .surface import TrainerSurface

logger = logging.getLogger(__name__)


class BatchSource:
    """Starts the epochs of a run, and owns its random states.

    Training and loading draw from the same generators, and loading is one batch ahead. A checkpoint therefore has
    three states, and `start_epoch` and `restore_rng` set them in the order in which the first run drew from them:

    1. before the epoch: its order and its workers' seeds are drawn again;
    2. before the batch that waits: the batches that were trained on are skipped, and this one is loaded again;
    3. at the checkpoint: training draws the next number. `restore_rng` sets it, once.

    A checkpoint of transformers has the last one alone. As transformers does, the run then sets it when the batches of
    its first update are loaded. Workers' generators cannot be read from this process: their batches are loaded again.
    """

    def __init__(self, trainer: TrainerSurface, loader: Any) -> None:
        self.loader = loader
        self._generators = generators_of(loader)
        self._trainer = trainer
        self._folder: str | None = None  # an override restores from it; None: `_pending` is set as it is
        self._pending: dict[str, Any] | None = None  # the states that `restore_rng` sets; None once it has
        self._loading: dict[str, Any] | None = None  # the saved states of loading, until an epoch starts from them
        self._batches: Iterator[Any] | None = None
        self._before_epoch: dict[str, Any] | None = None

    # Resuming

    def load(self, folder: str) -> None:
        """Reads the states of a checkpoint. The generators are set by `start_epoch` and `restore_rng`."""
        processes = self._trainer._mt_processes
        states = read_rng(folder, processes.rank, processes.size)
        self._restart_pass(states)
        drawn = None if states is None else {name: states[name] for name in states if name not in OF_LOADING}
        self._folder, self._pending = folder, drawn

    def restore_rng(self) -> None:
        """Sets the generators to where they were at the checkpoint, once.

        That is before a new epoch, else once its first batch is loaded, or at its end if it gives none.
        """
        if self._pending is None:
            return
        if self._folder is not None and self._trainer._mt_compat.restores_rng:
            self._trainer._load_rng_state(self._folder)
        else:
            set_rng(self._pending, self._generators)
        self._pending = None

    @contextlib.contextmanager
    def drawing_ahead(self) -> Iterator[None]:
        """Restores the generators inside. Draws inside advance the states that `restore_rng` sets later."""
        if self._pending is None:
            yield
            return
        set_rng(self._pending, self._generators)
        yield
        self._folder, self._pending = None, {**self._pending, **rng_state(self._generators)}

    # The epochs

    def start_epoch(self, epoch: int, skip: int) -> Iterator[Any]:
        """Returns the batches of an epoch without the first `skip`; usually they are loaded one ahead of training."""
        saved, self._loading = self._loading, None
        if skip and saved:
            return self._resume_epoch(epoch, skip, saved)
        if not skip:
            self.restore_rng()  # the epoch draws its own numbers
        self._before_epoch = rng_state(self._generators)
        self._batches = epoch_batches(self.loader, epoch, skip)
        return self._batches

    def _resume_epoch(self, epoch: int, skip: int, saved: dict[str, Any]) -> Iterator[Any]:
        """Does the same with the states of loading that a checkpoint has."""
        before_epoch, waiting = saved.get(BEFORE_EPOCH), saved.get(BEFORE_WAITING)
        if before_epoch is not None:
            set_rng(before_epoch, self._generators)
            if getattr(self.loader, "num_workers", 0):
                logger.info(
                    "Loading the first %d batches of the epoch again to restore the random state of the workers.", skip
                )
        self._before_epoch = before_epoch or rng_state(self._generators)
        before_first = None
        if BEFORE_WAITING in saved:
            before_first = self.restore_rng if waiting is None else functools.partial(set_rng, waiting)
        # a checkpoint of transformers does not have the states before the epoch: workers start anew, as there
        self._batches = epoch_batches(self.loader, epoch, skip, before_first, load_skipped=before_epoch is not None)
        if isinstance(self._batches, PrefetchIterator) and waiting is not None:
            self._batches.start()
            self.restore_rng()
        return self._batches

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

    # Saving

    def state_dict(self) -> dict[str, Any]:
        """Returns the states of the generators now, and those of loading."""
        return {**rng_state(self._generators), **self._loading_state()}

    def snapshot(self, with_loading: bool) -> dict[str, Any]:
        """Returns the states before the next draw; `with_loading` also those that loading drew from."""
        drawn = rng_state(self._generators) if self._pending is None else self._pending
        return {**drawn, **self._loading_state()} if with_loading else drawn

    def load_snapshot(self, saved: dict[str, Any], with_loading: bool) -> None:
        """Sets the generators. `with_loading` ends the pass over the loader, which then starts from `saved` again."""
        if with_loading:
            self._restart_pass(saved)
        set_rng(saved, self._generators)

    def _loading_state(self) -> dict[str, Any]:
        if self._batches is None and self._loading is not None:  # the run has only just resumed from it
            return self._loading
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
        self._loading = None if saved is None else {name: saved[name] for name in OF_LOADING if name in saved}
        seed, order = (self._loading or {}).get(ORDER_SEED), order_of(self.loader)
        # a data_seed takes precedence: it may ask for another order than the first run's
        if seed is not None and order is not None and self._trainer.args.data_seed is None:
            order.seed = seed
