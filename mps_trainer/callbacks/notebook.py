"""Shows the notebook's own bar and table below the first lines of a run."""

from __future__ import annotations

from typing import Any

from transformers.utils.notebook import NotebookProgressCallback as TransformersNotebookCallback

from .overview import first_lines


class NotebookProgressCallback(TransformersNotebookCallback):
    """transformers' bar and table for notebooks, after the first lines of the run."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            print("\n".join(first_lines(args, state, kwargs["model"], kwargs.get("train_dataloader"))), flush=True)
        super().on_train_begin(args, state, control, **kwargs)
