"""The state of a run: at its beginning, and going on from a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .base import TrainerBase
from .run_state import load_callbacks, resume_state


class Resuming(TrainerBase):
    """Makes `state` what a run begins with."""

    if TYPE_CHECKING:  # another part of the Trainer has them

        def _get_output_dir(self, trial: Any) -> str: ...
        def _mt_note_trial(self) -> None: ...

    def _mt_begin_state(self, max_steps: int, epochs: int, resume_from: str | None, trial: Any = None) -> None:
        """Makes `state` that of a run about to begin, or of the checkpoint it goes on from."""
        self.state = self._mt_new_state()
        if resume_from is not None:
            resume_state(self._mt_events, resume_from, self.args, self._load_callback_state)
        state, run_dir = self.state, self._get_output_dir(trial)
        self._mt_saver.note_earlier(run_dir, None if resume_from is None else state.global_step)
        state.max_steps, state.num_train_epochs = max_steps, epochs
        state.is_local_process_zero = self.is_local_process_zero()
        state.is_world_process_zero = self.is_world_process_zero()
        state.train_batch_size = self._mt_examples_at_a_time or self._train_batch_size
        state.compute_steps(self.args, max_steps)
        self._mt_note_trial()
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))

    def _load_callback_state(self, path: str) -> None:
        """Gives callbacks the state that `state.stateful_callbacks`, read from `path`, has of them, if asked to.

        Raises:
            MisconfigurationException: for a state that a callback does not take.
        """
        if not self.args.restore_callback_states_from_checkpoint:
            return
        load_callbacks(self._mt_events, path)
