"""Shows the notebook's own bar and table below the first lines of a run."""

from __future__ import annotations

from typing import Any

from transformers.utils.notebook import NotebookProgressCallback as TransformersNotebookCallback

from .overview import first_lines
from .progress_display import Display


class NotebookProgressCallback(Display, TransformersNotebookCallback):
    """transformers' bar and table for notebooks, after the first lines of the run."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            print("\n".join(first_lines(args, state, kwargs["model"], kwargs.get("train_dataloader"))), flush=True)
        super().on_train_begin(args, state, control, **kwargs)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.training_tracker is not None:  # transformers raises an error for a log outside a run
            super().on_log(args, state, control, **kwargs)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.training_tracker is not None:  # after two steps the bar has no speed to divide by
            self.training_tracker.predicted_remaining = None
        super().on_train_end(args, state, control, **kwargs)

    def close(self) -> None:
        """Leaves bar and table as they are, so that what follows does not draw into the output of an earlier cell."""
        self.training_tracker = None
        self.end_evaluation()

    def end_evaluation(self) -> None:
        self.prediction_bar = None
