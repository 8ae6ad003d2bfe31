"""Evaluation and prediction: a pass over a dataset without gradients, and the metrics of what came out."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers.trainer_pt_utils import EvalLoopContainer, find_batch_size, nested_detach
from transformers.trainer_utils import (
    EvalLoopOutput,
    EvalPrediction,
    PredictionOutput,
    denumpify_detensorize,
    speed_metrics,
)

from ..errors import MisconfigurationException
from .loaders import Loaders
from .loss import IGNORED_LABEL
from .objective import Objective
from .optimizer import follows_metric, set_mode

logger = logging.getLogger(__name__)


class Evaluation(Loaders, Objective):
    """evaluate, predict, and the loop that both share."""

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Metrics on `eval_dataset`, logged and returned; a dictionary of datasets gives those of all of them."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(dataset, dict):
            metrics: dict[str, float] = {}
            for name, part in dataset.items():
                metrics.update(self.evaluate(part, ignore_keys, f"{metric_key_prefix}_{name}"))
            return metrics
        start_time = time.time()
        loader = self.get_eval_dataloader(eval_dataset)
        loss_only = True if self.compute_metrics is None else None  # nobody would look at the predictions
        output = self.evaluation_loop(loader, "Evaluation", loss_only, ignore_keys, metric_key_prefix)
        self._add_speed(output, start_time, metric_key_prefix)
        self.log(output.metrics)
        self.fire("on_evaluate", metrics=output.metrics)
        return output.metrics

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Predictions for `test_dataset`, with labels and metrics if it has labels."""
        start_time = time.time()
        loader = self.get_test_dataloader(test_dataset)
        output = self.evaluation_loop(loader, "Prediction", None, ignore_keys, metric_key_prefix)
        self._add_speed(output, start_time, metric_key_prefix)
        self.fire("on_predict", metrics=output.metrics)
        return PredictionOutput(output.predictions, output.label_ids, output.metrics)

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Predictions, labels and metrics for all batches of `dataloader`.

        Outputs stay on the device until `eval_accumulation_steps` batches are done, or all are.
        """
        args, model = self.args, self.model
        loss_only = args.prediction_loss_only if prediction_loss_only is None else prediction_loss_only
        logger.info("***** Running %s *****", description)
        self.callback_handler.eval_dataloader = dataloader
        losses, predictions, labels = (EvalLoopContainer(True, padding_index=IGNORED_LABEL) for _ in range(3))
        seen, was_training = 0, model.training
        model.eval()
        set_mode(self.optimizer, training=False)
        for step, inputs in enumerate(dataloader, start=1):
            size = find_batch_size(inputs) or args.eval_batch_size
            seen += size
            loss, logits, label = self.prediction_step(model, inputs, loss_only, ignore_keys=ignore_keys)
            if logits is not None and self.preprocess_logits_for_metrics is not None:
                logits = self.preprocess_logits_for_metrics(logits, label)
            repeated = None if loss is None else loss.repeat(size)
            for container, value in ((losses, repeated), (predictions, logits), (labels, label)):
                if value is not None:
                    container.add(value)
                if args.eval_accumulation_steps and step % args.eval_accumulation_steps == 0:
                    container.to_cpu_and_numpy()
            self.fire("on_prediction_step")
        model.train(was_training)
        loss_values, *pair = (container.get_arrays() for container in (losses, predictions, labels))
        metrics = self._metrics(loss_values, pair[0], pair[1], metric_key_prefix)
        return EvalLoopOutput(predictions=pair[0], label_ids=pair[1], metrics=metrics, num_samples=seen)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """Loss, logits and labels of one batch, each None where there is none."""
        names = self.label_names
        has_labels = bool(names) and all(inputs.get(name) is not None for name in names)
        has_loss = has_labels or bool(not names and (inputs.get("return_loss") or self.can_return_loss))
        if ignore_keys is None:
            config = getattr(self.model, "config", None)
            ignore_keys = list(getattr(config, "keys_to_ignore_at_inference", ["past_key_values"]))
        items = self.count_items([inputs])[0]
        counts = {} if items is None else {"num_items_in_batch": items}
        inputs = self._prepare_inputs(inputs)
        labels = None
        if has_labels:  # before the loss is computed, which may take them out of the inputs
            labels = nested_detach(tuple(inputs.get(name) for name in names))
            labels = labels[0] if len(labels) == 1 else labels
        with torch.no_grad(), self.compute_loss_context_manager():
            if has_loss:
                loss, outputs = self.compute_loss(model, inputs, return_outputs=True, **counts)
                loss = loss.detach().float().mean()
            else:
                loss, outputs = None, model(**inputs)
        if prediction_loss_only:
            return loss, None, None
        return loss, nested_detach(_logits(outputs, has_loss, ignore_keys)), labels

    # In a run

    def evaluate_in_training(self, step_scheduler: bool = True) -> dict[str, float]:
        """Evaluates at a step of a run, and steps a schedule that follows the metric."""
        metrics = self.evaluate(ignore_keys=self.ignore_keys_for_eval)
        if step_scheduler and follows_metric(self.lr_scheduler):
            self.lr_scheduler.step(self._watched_metric(metrics))
        return metrics

    def note_best_metric(self, metrics: dict[str, float]) -> bool:
        """Records the metric that decides which checkpoint is best; whether this is the best so far."""
        if self.args.metric_for_best_model is None:
            return False
        value, best = self._watched_metric(metrics), self.state.best_metric
        is_best = best is None or math.isnan(best) or (value > best if self.args.greater_is_better else value < best)
        if is_best:
            self.state.best_metric = value
            if self.args.save_strategy != "no":
                self.state.best_global_step = self.state.global_step
        return is_best

    def _watched_metric(self, metrics: dict[str, float]) -> float:
        name = "eval_" + str(self.args.metric_for_best_model).removeprefix("eval_")
        if name not in metrics:
            raise MisconfigurationException(
                f"metric_for_best_model={self.args.metric_for_best_model!r} is not among the metrics of the "
                f"evaluation: {', '.join(sorted(metrics))}. Name one of them."
            )
        return metrics[name]

    def _metrics(self, losses: Any, predictions: Any, labels: Any, prefix: str) -> dict[str, Any]:
        metrics: dict[str, Any] = {}
        if self.compute_metrics is not None and predictions is not None and labels is not None:
            metrics = dict(self.compute_metrics(EvalPrediction(predictions=predictions, label_ids=labels)))
        metrics = denumpify_detensorize(metrics)
        if losses is not None:
            metrics[f"{prefix}_loss"] = np.mean(losses).item()
        return {
            name if name.startswith(f"{prefix}_") else f"{prefix}_{name}": value for name, value in metrics.items()
        }

    def _add_speed(self, output: EvalLoopOutput, start_time: float, prefix: str) -> None:
        steps = math.ceil(output.num_samples / self.args.eval_batch_size)
        output.metrics.update(speed_metrics(prefix, start_time, num_samples=output.num_samples, num_steps=steps))


def _logits(outputs: Any, has_loss: bool, ignore_keys: list[str]) -> Any:
    """What is left of a model's outputs without the loss; alone if it is one thing."""
    if isinstance(outputs, dict):
        left = [value for key, value in outputs.items() if key not in [*ignore_keys, "loss"] and value is not None]
    elif isinstance(outputs, torch.Tensor):
        left = [] if has_loss else [outputs]
    else:
        left = list(outputs[1:] if has_loss else outputs)
    if not left:
        return None
    return left[0] if len(left) == 1 else tuple(left)
