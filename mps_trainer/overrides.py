"""Records which methods of the Trainer other code overrides, and what the Trainer therefore does differently.

A subclass, an attribute of the instance and a patch of the class all override a method. Only this module finds out
what is overridden; others read the fields. To let a further override disable a fast path, add it to `_SKIPPED_BY`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# The methods that write a checkpoint's files. Their overrides have to run in the training thread.
_WRITERS = (
    "_save_checkpoint",
    "save_model",
    "_save",
    "_save_optimizer_and_scheduler",
    "_save_scaler",
    "_save_rng_state",
    "_rotate_checkpoints",
)

# Fast paths that a run takes only with some arguments, models and optimizers.
LOSS_WITHOUT_LOGITS = "the loss without logits"
BACKGROUND_SAVES = "saving while training goes on"
CLIPPING_IN_STEP = "clipping within the optimizer's step"

# The methods that each fast path skips, in the order of the report.
_SKIPPED_BY = {
    LOSS_WITHOUT_LOGITS: ("compute_loss",),
    BACKGROUND_SAVES: _WRITERS,
    "steps that do not wait for the loss": ("_maybe_log_save_evaluate",),
    CLIPPING_IN_STEP: ("_clip_grad_norm", "_get_grad_norm"),
    "naming rows of the dataset in warnings": ("get_batch_samples",),
}


@dataclass(frozen=True)
class Overrides:
    """Records what overrides do, as of the start of a call of `train`, `evaluate` or `predict`.

    A field with the name of a method is True if that method is overridden. A leading underscore is left out.

    Attributes:
        get_train_dataloader: training needs no `train_dataset`.
        get_eval_dataloader: evaluation needs no `eval_dataset`.
        get_batch_samples: the override takes an update's batches from the loader, in any order.
        training_step: the override returns the loss of a batch, and may change it in place afterwards.
        compute_loss: the override computes the loss of a batch.
        get_num_items_in_batch: the override counts the items of an update.
        track_num_input_tokens: the override counts the tokens of a batch, over all processes.
        split_batch: the override splits batches for `auto_find_batch_size`.
        autocast_smart_context_manager: the override gives the context of the forward pass.
        prediction_step: the override evaluates a batch.
        maybe_log_save_evaluate: the override logs, evaluates and saves, and has to be called after each step.
        push_from_checkpoint: the override uploads checkpoints.
        load_rng_state: the override restores random numbers from a checkpoint.
        log: the override sees, and may change, what is logged.
        may_train_other_parameters: True if overrides make the optimizer or the loss.
        move_batches: True if overrides move batches to the device.
        see_training_batches: True if overrides see training batches before the Trainer moves them to the device.
        see_evaluation_batches: True if overrides see evaluation batches before the Trainer moves them.
        compute_losses_or_items: True if overrides compute the losses of an update, or take its batches and count
            their items.
        clip_or_measure_gradients: True if overrides clip gradients or measure their norm.
        write_checkpoints: True if overrides write a part of checkpoints.
        disabled_fast_paths: the fast paths that overrides disable, each with the names of these overrides.
    """

    get_train_dataloader: bool = False
    get_eval_dataloader: bool = False
    get_batch_samples: bool = False
    training_step: bool = False
    compute_loss: bool = False
    get_num_items_in_batch: bool = False
    track_num_input_tokens: bool = False
    split_batch: bool = False
    autocast_smart_context_manager: bool = False
    prediction_step: bool = False
    maybe_log_save_evaluate: bool = False
    push_from_checkpoint: bool = False
    load_rng_state: bool = False
    log: bool = False
    may_train_other_parameters: bool = False
    move_batches: bool = False
    see_training_batches: bool = False
    see_evaluation_batches: bool = False
    compute_losses_or_items: bool = False
    clip_or_measure_gradients: bool = False
    write_checkpoints: bool = False
    disabled_fast_paths: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, trainer: Any) -> Overrides:
        """Returns the record of `trainer`, whose class keeps its own methods, unpatched, as `_mt_methods`."""
        kind, own = type(trainer), vars(trainer)
        methods: Mapping[str, Any] = kind._mt_methods
        overridden = {name for name, each in methods.items() if name in own or getattr(kind, name, None) is not each}

        def has(*names: str) -> bool:
            return not overridden.isdisjoint(names)

        moves_batches = has("_prepare_inputs", "_prepare_input")
        to_blame = {path: tuple(name for name in names if name in overridden) for path, names in _SKIPPED_BY.items()}
        return cls(
            get_train_dataloader=has("get_train_dataloader"),
            get_eval_dataloader=has("get_eval_dataloader"),
            get_batch_samples=has("get_batch_samples"),
            training_step=has("training_step"),
            compute_loss=has("compute_loss"),
            get_num_items_in_batch=has("_get_num_items_in_batch"),
            track_num_input_tokens=has("_track_num_input_tokens"),
            split_batch=has("split_batch"),
            autocast_smart_context_manager=has("autocast_smart_context_manager"),
            prediction_step=has("prediction_step"),
            maybe_log_save_evaluate=has("_maybe_log_save_evaluate"),
            push_from_checkpoint=has("_push_from_checkpoint"),
            load_rng_state=has("_load_rng_state"),
            log=has("log"),
            may_train_other_parameters=has(
                "create_optimizer", "create_optimizer_and_scheduler", "compute_loss", "training_step"
            ),
            move_batches=moves_batches,
            see_training_batches=moves_batches or has("training_step"),
            see_evaluation_batches=moves_batches or has("prediction_step"),
            compute_losses_or_items=has("compute_loss", "training_step", "get_batch_samples"),
            clip_or_measure_gradients=has("_clip_grad_norm", "_get_grad_norm"),
            write_checkpoints=has(*_WRITERS),
            disabled_fast_paths={path: names for path, names in to_blame.items() if names},
        )

    @property
    def reasons(self) -> list[str]:
        """Returns a clause for each fast path that overrides disable, for the log and the report."""
        return [
            f"{path}, because {' and '.join(names)} is overridden" for path, names in self.disabled_fast_paths.items()
        ]

    def without(self, fast_path: str) -> Overrides:
        """Returns the record of a run that would not take `fast_path` anyway, so that `reasons` does not name it."""
        others = {path: names for path, names in self.disabled_fast_paths.items() if path != fast_path}
        return dataclasses.replace(self, disabled_fast_paths=others)
