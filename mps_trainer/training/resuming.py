"""The state of a run: at its beginning, and going on from a checkpoint."""

from __future__ import annotations

from .base import TrainerBase
from .run_state import load_callbacks


class Resuming(TrainerBase):
    """Makes `state` what a run begins with."""

    def _load_callback_state(self, path: str) -> None:
        """Gives callbacks the state that `state.stateful_callbacks`, read from `path`, has of them, if asked to."""
        if self.args.restore_callback_states_from_checkpoint:
            load_callbacks(self._mt_events, path)
