"""Restores the random number generators of a resumed run.

The run restores them once, at the first of these moments: before the first epoch draws its order, when the loading of
batches stands where the checkpoint was made, after the first batches, or at the end of an epoch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from ..random_state import rng_state, set_rng


class ResumedRng:
    """Restores the generators from the checkpoint that a run resumes from.

    Args:
        load: sets the generators to the states in a checkpoint folder.
    """

    def __init__(self, load: Callable[[str], None]) -> None:
        self._load = load
        self._folder = ""
        self._states: dict[str, Any] | None = None
        self._is_as_saved = True

    @property
    def is_pending(self) -> bool:
        """Returns True until the generators are restored."""
        return self._states is not None

    def resume_from(self, folder: str, states: dict[str, Any] | None) -> None:
        """Sets the states to restore, read from the checkpoint `folder`; None for a checkpoint without them."""
        self._folder, self._states = folder, states

    def restore(self) -> None:
        """Restores the generators from the checkpoint, once."""
        if self._states is not None and self._is_as_saved:
            self._load(self._folder)
        elif self._states is not None:
            set_rng(self._states)
        self._states = None

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Restores the generators inside. Draws inside advance the states that are restored later."""
        if self._states is None:
            yield
            return
        set_rng(self._states)
        yield
        self._states = {**self._states, **rng_state()}
        self._is_as_saved = False

    def state_dict(self) -> dict[str, Any]:
        """Returns the states before the next draw."""
        return rng_state() if self._states is None else self._states

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Sets the generators."""
        set_rng(state)
