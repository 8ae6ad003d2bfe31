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
class Compat:
    """Records what overrides do, as of the start of a call of `train`, `evaluate` or `predict`.

    Attributes:
        makes_optimizer_or_loss: True if other parameters than the model's may be trained.
        gives_train_loader: True if training needs no `train_dataset`.
        gives_eval_loader: True if evaluation needs no `eval_dataset`.
        loads_batches: True if other code takes an update's batches from the loader, in any order.
        steps_see_batches: True if other code sees training batches before the Trainer moves them to the device.
        evaluation_sees_batches: True if other code sees evaluation batches before the Trainer moves them.
        keeps_losses: True if other code returns the losses of steps, and may change them in place afterwards.
        computes_loss: True if other code computes the loss of a batch.
        computes_updates: True if other code computes losses or counts the items of an update.
        counts_items: True if other code counts the items of an update.
        counts_tokens: True if other code counts the tokens of a batch, over all processes.
        splits_batches: True if other code splits batches for `auto_find_batch_size`.
        clips: True if other code clips gradients or measures their norm.
        autocasts: True if other code gives the context of the forward pass.
        predicts: True if other code evaluates a batch.
        logs_each_step: True if other code logs, evaluates and saves, and has to be called after each step.
        writes_checkpoints: True if other code writes a part of checkpoints.
        uploads_checkpoints: True if other code uploads checkpoints.
        restores_rng: True if other code restores random numbers from a checkpoint.
        off: a clause for each fast path that an override disables, with the reason, for the log and the report.
    """

    makes_optimizer_or_loss: bool = False
    gives_train_loader: bool = False
    gives_eval_loader: bool = False
    loads_batches: bool = False
    steps_see_batches: bool = False
    evaluation_sees_batches: bool = False
    keeps_losses: bool = False
    computes_loss: bool = False
    computes_updates: bool = False
    counts_items: bool = False
    counts_tokens: bool = False
    splits_batches: bool = False
    clips: bool = False
    autocasts: bool = False
    predicts: bool = False
    logs_each_step: bool = False
    writes_checkpoints: bool = False
    uploads_checkpoints: bool = False
    restores_rng: bool = False
    off: tuple[str, ...] = ()

    @classmethod
    def of(cls, trainer: Any) -> Compat:
        """Returns the record of `trainer`, whose class keeps its own methods, unpatched, as `_mt_methods`."""
        kind, own = type(trainer), vars(trainer)
        methods: Mapping[str, Any] = kind._mt_methods
        overridden = {name for name, each in methods.items() if name in own or getattr(kind, name, None) is not each}

        def has(*names: str) -> bool:
            return not overridden.isdisjoint(names)

        prepares = has("_prepare_inputs", "_prepare_input")
        to_blame = {path: [name for name in names if name in overridden] for path, names in _SKIPPED_BY.items()}
        return cls(
            makes_optimizer_or_loss=has(
                "create_optimizer", "create_optimizer_and_scheduler", "compute_loss", "training_step"
            ),
            gives_train_loader=has("get_train_dataloader"),
            gives_eval_loader=has("get_eval_dataloader"),
            loads_batches=has("get_batch_samples"),
            steps_see_batches=prepares or has("training_step"),
            evaluation_sees_batches=prepares or has("prediction_step"),
            keeps_losses=has("training_step"),
            computes_loss=has("compute_loss"),
            computes_updates=has("compute_loss", "training_step", "get_batch_samples"),
            counts_items=has("_get_num_items_in_batch"),
            counts_tokens=has("_track_num_input_tokens"),
            splits_batches=has("split_batch"),
            clips=has("_clip_grad_norm", "_get_grad_norm"),
            autocasts=has("autocast_smart_context_manager"),
            predicts=has("prediction_step"),
            logs_each_step=has("_maybe_log_save_evaluate"),
            writes_checkpoints=has(*_WRITERS),
            uploads_checkpoints=has("_push_from_checkpoint"),
            restores_rng=has("_load_rng_state"),
            off=tuple(
                f"{path}, because {' and '.join(names)} is overridden" for path, names in to_blame.items() if names
            ),
        )

    def without(self, fast_path: str) -> Compat:
        """Returns the record of a run that would not take `fast_path` anyway, so that `off` does not name it."""
        return dataclasses.replace(self, off=tuple(text for text in self.off if not text.startswith(fast_path)))
