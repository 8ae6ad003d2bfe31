"""Provides the callbacks that watch a run: transformers' and this package's own."""

from __future__ import annotations

import os
from typing import Any

from transformers.trainer_callback import DefaultFlowCallback, PrinterCallback, TrainerCallback
from transformers.utils import is_in_notebook

from ..errors import MisconfigurationException
from ..training_args import TrainingArguments
from .device_stats import DeviceStatsMonitor, call_first_who_add_to_logs
from .progress import ProgressCallback
from .progress_display import Display


def all_callbacks(
    args: TrainingArguments, trainer: Any, given: list[TrainerCallback | type[TrainerCallback]]
) -> list[TrainerCallback | type[TrainerCallback]]:
    """Returns the callbacks of `trainer` in the order in which they are called: `given` ones before the display."""
    flow, display = _replaced_by_library(args)
    if display is None:
        display = PrinterCallback if args.disable_tqdm else ProgressCallback
        # it would show a bar for each process
        if is_in_notebook() and not args.disable_tqdm and args.process_index == 0:
            from .notebook import NotebookProgressCallback as display  # imports IPython
    jit = []
    if args.enable_jit_checkpoint:
        from transformers.trainer_jit_checkpoint import JITCheckpointCallback

        jit = [JITCheckpointCallback()]
        jit[0].set_trainer(trainer)
    return [*flow, *_trackers(args), *jit, *given, display]


def _replaced_by_library(args: TrainingArguments) -> tuple[list[Any], type[TrainerCallback] | None]:
    """Returns the default callbacks and the display that a library, such as ms-swift, put into transformers."""
    if not args._stands_in:
        return [DefaultFlowCallback], None
    from transformers import trainer

    display = trainer.PrinterCallback if args.disable_tqdm else trainer.DEFAULT_PROGRESS_CALLBACK
    return trainer.DEFAULT_CALLBACKS, None if display.__module__.startswith("transformers.") else display


def _trackers(args: TrainingArguments) -> list[TrainerCallback]:
    """Returns the callbacks of `report_to`.

    Raises:
        MisconfigurationException: if one of them is unknown or not installed.
    """
    if not args.report_to:
        return []
    from transformers.integrations.integration_utils import get_reporting_integration_callbacks

    try:
        trackers = [tracker() for tracker in get_reporting_integration_callbacks(args.report_to)]
    except (RuntimeError, ImportError, KeyError, ValueError) as error:
        why = " ".join(str(error).split())
        install = "Install the tracker"
        if "requires tensorboard" in why:
            why, install = "TensorBoard is not installed.", "Run: python -m pip install tensorboard"
        raise MisconfigurationException(
            f"report_to={args.report_to!r} cannot be used: {why} {install}, or leave report_to out."
        ) from error
    if args.logging_dir is not None:
        for tracker in trackers:
            if getattr(tracker, "logging_dir", "") is None:  # TensorBoard's, without TENSORBOARD_LOGGING_DIR
                tracker.logging_dir = os.path.expanduser(args.logging_dir)
    return trackers


def close_display(callbacks: list[TrainerCallback], of_evaluation: bool = False) -> None:
    """Ends the bars on the screen, or only the bars of an evaluation."""
    for callback in callbacks:
        if isinstance(callback, Display):
            callback.end_evaluation() if of_evaluation else callback.close()


__all__ = [
    "DeviceStatsMonitor",
    "ProgressCallback",
    "all_callbacks",
    "call_first_who_add_to_logs",
    "close_display",
]
