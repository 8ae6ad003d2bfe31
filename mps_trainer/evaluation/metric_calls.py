"""Calls `compute_metrics` of the Trainer, and names the cause if an evaluation never calls it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

from transformers.trainer_utils import EvalPrediction

from ..callbacks.events import Events
from ..model.introspection import base_model
from ..training_args import TrainingArguments
from .predictions import has_loss

logger = logging.getLogger(__name__)


class MeasuredTrainer(Protocol):
    """Lists the attributes of a Trainer that calls of `compute_metrics` use, in transformers' names."""

    args: TrainingArguments
    model: Any
    compute_metrics: Any
    label_names: list[str]
    can_return_loss: bool


class MetricCalls:
    """Calls `compute_metrics` in one evaluation or prediction.

    Args:
        events: its report has the warnings, too.
        warned: the warnings that earlier evaluations of this Trainer gave; new ones are added.
        loss_only: True if the evaluation computes no predictions.
        needs_labels: False for a prediction, whose rows may have no labels.
        is_overridden: True if a method of a subclass evaluates the batches.
    """

    def __init__(
        self,
        trainer: MeasuredTrainer,
        events: Events,
        warned: set[str],
        *,
        loss_only: bool,
        needs_labels: bool,
        is_overridden: bool,
    ) -> None:
        self._trainer, self._events, self._warned = trainer, events, warned
        self._loss_only, self._needs_labels, self._is_overridden = loss_only, needs_labels, is_overridden
        self._was_called = self._has_batch = False
        self._cause = "the evaluation had no batch. Give it a dataset with rows" if needs_labels else None

    def __call__(self, losses: Any, logits: Any, labels: Any, inputs: Any, **settings: bool) -> Any:
        """Calls `compute_metrics` and returns its result; {} without predictions or labels.

        On one batch, `compute_result=True` marks the last one: the result then has the metrics of all batches.
        """
        trainer = self._trainer
        if trainer.compute_metrics is None or logits is None or labels is None:
            return {}
        self._was_called = True
        wanted = trainer.args.include_for_metrics
        prediction = EvalPrediction(
            predictions=logits,
            label_ids=labels,
            losses=losses if "loss" in wanted else None,
            inputs=inputs if "inputs" in wanted else None,
        )
        metrics = trainer.compute_metrics(prediction, **settings)
        if metrics is None and settings.get("compute_result", True):
            self._warn("compute_metrics returned None, so there are no metrics. Let it return a dictionary of them.")
        return metrics

    def add_batch(self, inputs: Any, outputs: Any, logits: Any, labels: Any) -> None:
        """Finds out from the first batch why `compute_metrics` cannot be called.

        Args:
            outputs: the predictions before `preprocess_logits_for_metrics`, which returned `logits`.
        """
        if not self._has_batch and self._trainer.compute_metrics is not None:
            self._has_batch, self._cause = True, self._missing(inputs, outputs, logits, labels)

    def warn_if_never_called(self) -> None:
        """Warns if the Trainer has a `compute_metrics` that was not called."""
        if self._trainer.compute_metrics is not None and not self._was_called and self._cause is not None:
            self._warn(f"compute_metrics was not called: {self._cause}.")

    def _warn(self, text: str) -> None:
        """Warns once for each Trainer and cause, also in the report."""
        if text not in self._warned:
            self._warned.add(text)
            logger.warning("%s", text)
            self._events.note("warning", text)

    def _missing(self, inputs: Any, outputs: Any, logits: Any, labels: Any) -> str | None:
        trainer = self._trainer
        if self._loss_only:
            return "prediction_loss_only=True asks for the loss alone. Leave it out"
        batch = inputs if isinstance(inputs, Mapping) else {}
        if labels is None and not has_loss(batch, trainer.label_names, trainer.can_return_loss):
            is_named_so = any("label" in str(name) for name in batch)
            return self._missing_labels(batch) if self._needs_labels or is_named_so else None
        if outputs is not None and logits is None:
            return "preprocess_logits_for_metrics returned None. Let it return what compute_metrics needs"
        lacks = "predictions" if outputs is None else "labels"
        if self._is_overridden:
            kind = type(trainer).__name__
            return (
                f"{kind}.prediction_step returned no {lacks}. Let it return the loss, the predictions and the labels"
            )
        model = type(base_model(trainer.model)).__name__
        return f"{model} returned None beside its loss. Let forward() return a tensor, such as the logits"

    def _missing_labels(self, batch: Mapping[Any, Any]) -> str:
        """Returns why none of a batch's entries counts as labels."""
        names, label_names = ", ".join(map(str, batch)), self._trainer.label_names
        model, remedy = type(base_model(self._trainer.model)).__name__, "Set label_names to the names of the labels"
        if label_names:
            missing = " and ".join(repr(name) for name in label_names if batch.get(name) is None)
            removed = f", or remove_unused_columns=False if {model}.forward() does not take them"
            return (
                f"the batches have no {missing} (label_names={label_names}), only {names}. Add labels to the dataset, "
                f"or set label_names to their names{removed if self._trainer.args.remove_unused_columns else ''}"
            )
        if self._trainer.args.label_names is not None:
            return f"label_names=[] says that the batches ({names}) have no labels. {remedy}"
        return (
            f"{model}.forward() has no argument with 'label' in its name, so which of {names} are labels is unknown. "
            + remedy
        )
