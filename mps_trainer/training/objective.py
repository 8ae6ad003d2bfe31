"""What a Trainer minimises: the loss of a batch, and in which number format it is computed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from torch import nn
from transformers.trainer_pt_utils import LabelSmoother

from .base import TrainerBase
from .loss import count_items, loss_of, shifts_labels


class Objective(TrainerBase):
    """Override compute_loss for a loss of your own."""

    compute_loss_func: Callable | None
    label_smoother: LabelSmoother | None

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: int | None = None,
    ) -> Any:
        """The loss of one batch, the mean over its items; with `return_outputs`, a pair of it and the outputs.

        The Trainer weighs the losses of accumulated batches by their items. If a loss of yours is already normalised
        over `num_items_in_batch`, the items of the whole update, set `loss_is_scaled_for_ga = True`.
        """
        takes_labels = self.label_smoother is not None or self.compute_loss_func is not None
        labels = inputs.pop("labels", None) if takes_labels else None
        outputs = model(**inputs)
        if self.compute_loss_func is not None:
            loss = self.compute_loss_func(outputs, labels, num_items_in_batch=num_items_in_batch)
        elif labels is not None and self.label_smoother is not None:
            loss = self.label_smoother(outputs, labels, shift_labels=shifts_labels(model))
        else:
            loss = loss_of(outputs, inputs)
        return (loss, outputs) if return_outputs else loss

    def compute_loss_context_manager(self) -> contextlib.AbstractContextManager:
        """Around every forward pass: autocast, if the arguments ask for it."""
        return self.precision.autocast()

    def count_items(self, batches: list[Any]) -> list[int | None]:
        """The items of each batch, None where they cannot be told or nobody looks at them."""
        if not self._counts_matter:
            return [None] * len(batches)
        shifted = shifts_labels(self.model)
        return [count_items(batch, self.label_names, shifted) for batch in batches]

    @property
    def _counts_matter(self) -> bool:
        accumulates = self.args.gradient_accumulation_steps > 1
        return accumulates or self.compute_loss_func is not None or self._computes_loss_itself

    @property
    def _computes_loss_itself(self) -> bool:
        """Whether a subclass has a loss of its own."""
        return type(self).compute_loss is not Objective.compute_loss
