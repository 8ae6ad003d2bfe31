"""Evaluation and prediction: what a subclass may override of them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers.trainer_utils import EvalLoopOutput, PredictionOutput

from ..evaluation import outputs
from ..evaluation.evaluator import Evaluator, in_batches_that_fit, in_eval_mode
from .loaders import Loaders
from .optimizer import set_mode


class Evaluation(Loaders):
    """evaluate, predict, and the loop that both share."""

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Returns metrics on `eval_dataset`, and logs them; a dictionary of datasets gives those of all of them.

        Args:
            eval_dataset: a dataset, a dictionary of datasets, or the name of one in the dictionary that the Trainer
                has. Default: what the Trainer has.
            ignore_keys: keys of the model's outputs to leave out of the predictions.
            metric_key_prefix: what the names of the metrics begin with.
        """
        datasets = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(datasets, dict):
            given = {name: name for name in datasets} if eval_dataset is None else datasets
            each = [self.evaluate(part, ignore_keys, f"{metric_key_prefix}_{name}") for name, part in given.items()]
            return {name: value for metrics in each for name, value in metrics.items()}
        self._memory_tracker.start()
        make_loader = functools.partial(self.get_eval_dataloader, eval_dataset)
        output = self._mt_evaluate(
            make_loader(),
            make_loader,
            description="Evaluation",
            prediction_loss_only=True if self.compute_metrics is None else None,  # nobody would look at predictions
            ignore_keys=ignore_keys,
            metric_key_prefix=metric_key_prefix,
        )
        self.log(output.metrics)
        self._mt_events.fire("on_evaluate", metrics=output.metrics)
        self._memory_tracker.stop_and_update_metrics(output.metrics)
        return output.metrics

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Returns predictions for `test_dataset`, with labels and metrics if it has labels; logs nothing."""
        self._memory_tracker.start()
        make_loader = functools.partial(self.get_test_dataloader, test_dataset)
        output = self._mt_evaluate(
            make_loader(),
            make_loader,
            description="Prediction",
            ignore_keys=ignore_keys,
            metric_key_prefix=metric_key_prefix,
        )
        self._mt_events.fire("on_predict", metrics=output.metrics)
        self._memory_tracker.stop_and_update_metrics(output.metrics)
        return PredictionOutput(output.predictions, output.label_ids, output.metrics)

    def _mt_evaluate(self, loader: Any, make_loader: Callable[[], Any], **settings: Any) -> EvalLoopOutput:
        return in_batches_that_fit(
            self.evaluation_loop,
            loader,
            make_loader,
            settings,
            args=self.args,
            is_in_train=self.is_in_train,
            describe_run=self._mt_describe_run,
            close_workers=self._mt_close_workers,
            note=self._mt_events.note,
        )

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Returns predictions, labels and metrics for all batches, and leaves the model in eval mode."""
        loss_only = self.args.prediction_loss_only if prediction_loss_only is None else prediction_loss_only
        evaluator = self._mt_evaluator(self._mt_model_for_evaluation())
        self.callback_handler.eval_dataloader = dataloader
        return evaluator.run(dataloader, description, loss_only, ignore_keys, metric_key_prefix)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """Returns loss, logits and labels of one batch, each None where there is none."""
        has_loss = outputs.has_loss(inputs, self.label_names, self.can_return_loss)
        items = self._get_num_items_in_batch([inputs], self.args.device) if has_loss else None
        counts = {} if items is None else {"num_items_in_batch": items}
        inputs = self._prepare_inputs(inputs)
        # before the loss is computed, which may take them out of the inputs
        labels = outputs.labels_of(inputs, self.label_names) if has_loss else None
        with torch.no_grad(), self.compute_loss_context_manager():
            if has_loss:
                if self.args.use_liger_kernel and prediction_loss_only:
                    inputs = {**inputs, "skip_logits": True}
                loss, given = self.compute_loss(model, inputs, return_outputs=True, **counts)
                loss = loss.detach().float().mean()
            else:
                loss, given = None, model(**inputs)
        if prediction_loss_only:
            return loss, None, None
        ignore_keys = outputs.keys_to_ignore(self.model) if ignore_keys is None else ignore_keys
        return loss, outputs.logits_of(given, has_loss, ignore_keys), labels

    def _mt_evaluator(self, model: nn.Module) -> Evaluator:
        return Evaluator(
            args=self.args,
            model=model,
            is_sharded=self.is_fsdp_enabled,
            preparation_time=self.model_preparation_time,
            processes=self._mt_processes,
            gradient_state=self.accelerator.gradient_state,
            prediction_step=self.prediction_step,
            preprocess_logits=self.preprocess_logits_for_metrics,
            compute_metrics=self.compute_metrics,
            main_input=lambda inputs: self._prepare_input(inputs[self._mt_main_input_name]),
            fire=self._mt_events.fire,
            leave_if_asked=None if self._mt_run is None else self._mt_run.preemption.leave_evaluation_if_asked,
        )

    def _mt_model_for_evaluation(self) -> nn.Module:
        """Returns the model in eval mode, and notes how long that took if nothing has used it before."""
        begun = time.time()
        model = self._wrap_model(self.model, training=False)
        if not self._mt_processes.is_distributed:  # a replica, which is for training, stays what wraps the model
            self.model_wrapped = model
        if not self.accelerator._models:
            self.accelerator.prepare_model(model, device_placement=self.place_model_on_device)
            self.model_preparation_time = round(time.time() - begun, 4)
        model = in_eval_mode(model, self.args, self.is_in_train)
        set_mode(self.optimizer, training=False)
        return model
