"""Evaluation and prediction: a pass over a dataset without gradients, and the metrics of what came out."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers.trainer_pt_utils import find_batch_size, nested_detach
from transformers.trainer_utils import (
    EvalLoopOutput,
    EvalPrediction,
    PredictionOutput,
    speed_metrics,
)

from ..checkpoints.rng import rng_state, set_rng
from ..data import shares
from ..data.buckets import buckets_of
from ..distributed import absent_named
from ..guards.exhausted import DeviceOutOfMemoryError, explained
from ..guards.growth import free_unused
from .loaders import Loaders
from .logged import plain
from .optimizer import set_mode
from .predictions import Predictions, watching_for_last
from .shards import in_step, parted_afterwards

logger = logging.getLogger(__name__)


class Evaluation(Loaders):
    """evaluate, predict, and the loop that both share."""

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Metrics on `eval_dataset`, logged and returned; a dictionary of datasets gives those of all of them.

        Args:
            eval_dataset: a dataset, a dictionary of datasets, or the name of one in the dictionary that the Trainer
                has. Default: what the Trainer has.
            ignore_keys: keys of the model's outputs to leave out of the predictions.
            metric_key_prefix: what the names of the metrics begin with.
        """
        given = eval_dataset is not None
        dataset = eval_dataset if given else self.eval_dataset
        if isinstance(dataset, dict):
            metrics: dict[str, float] = {}
            for name, part in dataset.items():
                metrics.update(self.evaluate(part if given else name, ignore_keys, f"{metric_key_prefix}_{name}"))
            return metrics
        self._memory_tracker.start()
        loader = self.get_eval_dataloader(eval_dataset)
        start_time = time.time()
        loss_only = True if self.compute_metrics is None else None  # nobody would look at the predictions
        output = self._in_batches_that_fit(
            loader,
            lambda: self.get_eval_dataloader(eval_dataset),
            description="Evaluation",
            prediction_loss_only=loss_only,
            ignore_keys=ignore_keys,
            metric_key_prefix=metric_key_prefix,
        )
        self._add_speed(output, start_time, metric_key_prefix)
        self.log(output.metrics)
        self.fire("on_evaluate", metrics=output.metrics)
        self._memory_tracker.stop_and_update_metrics(output.metrics)
        return output.metrics

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Predictions for `test_dataset`, with labels and metrics if it has labels; not logged."""
        self._memory_tracker.start()
        loader = self.get_test_dataloader(test_dataset)
        start_time = time.time()
        output = self._in_batches_that_fit(
            loader,
            lambda: self.get_test_dataloader(test_dataset),
            description="Prediction",
            ignore_keys=ignore_keys,
            metric_key_prefix=metric_key_prefix,
        )
        self._add_speed(output, start_time, metric_key_prefix)
        self.fire("on_predict", metrics=output.metrics)
        self._memory_tracker.stop_and_update_metrics(output.metrics)
        return PredictionOutput(output.predictions, output.label_ids, output.metrics)

    def _in_batches_that_fit(self, loader: Any, make_loader: Callable[[], Any], **settings: Any) -> EvalLoopOutput:
        """The evaluation loop; with `auto_find_batch_size`, again with half the batch when memory runs out."""
        args, before = self.args, None
        while True:
            if args.auto_find_batch_size:
                before = rng_state()  # a loader draws
            try:
                doing: Any = settings["description"].lower()
                with absent_named(doing), explained(self._describe_run, doing):
                    return self.evaluation_loop(loader, **settings)
            except DeviceOutOfMemoryError:
                self._close_workers(loader)
                # metrics of single batches are in the hands of compute_metrics, which would count some twice
                if before is None or args.eval_batch_size == 1 or args.batch_eval_metrics:
                    raise
            finally:
                if not self.is_in_train:  # within a run the next evaluation uses them again
                    self._close_workers(loader)
            size, args.per_device_eval_batch_size = args.eval_batch_size, -(-args.eval_batch_size // 2)
            logger.warning(
                "Memory ran out in an evaluation with batches of %d examples: it begins again with %d.",
                size,
                args.per_device_eval_batch_size,
            )
            size = args.per_device_eval_batch_size
            self._mt_events.note(
                "warning", f"Memory ran out in an evaluation. From here on its batches have {size} examples."
            )
            self.__dict__.pop("_eval_dataloaders", None)
            free_unused(args.device)
            set_rng(before)
            loader = make_loader()

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Predictions, labels and metrics for all batches of `dataloader`. The model is in eval mode afterwards."""
        args = self.args
        results: Mapping[str, Any] = {}
        loss_only = args.prediction_loss_only if prediction_loss_only is None else prediction_loss_only
        model = self._model_for_evaluation()
        self._announce_evaluation(dataloader, description)
        self.callback_handler.eval_dataloader = dataloader
        is_shared = self.processes.are_several and shares.is_shared(dataloader)
        by_batch = args.batch_eval_metrics and not is_shared
        kept = Predictions(args, keep_outputs=not by_batch or description == "Prediction", apart=is_shared)
        seen = 0
        batches = watching_for_last(dataloader, self.accelerator.gradient_state)
        evenly = shares.shares_of(dataloader) is not None  # as many batches in all processes
        # a sharded model waits for all of them in every pass
        uneven = self.is_fsdp_enabled and not evenly
        pairs = in_step(batches, self.processes) if uneven else zip(batches, itertools.repeat(True), strict=False)
        with parted_afterwards(model) if self.is_fsdp_enabled else contextlib.nullcontext():
            for number, (inputs, counts) in enumerate(pairs):
                size = find_batch_size(inputs) or args.eval_batch_size
                loss, logits, labels = self.prediction_step(model, inputs, loss_only, ignore_keys=ignore_keys)
                if logits is not None and self.preprocess_logits_for_metrics is not None:
                    logits = self.preprocess_logits_for_metrics(logits, labels)
                counts = counts and not (is_shared and shares.is_filler(dataloader, number))
                if counts:
                    seen += size
                    kept.add(loss, size, logits, labels, self._inputs_for_metrics(inputs))
                    self.fire("on_prediction_step")
                if self.loop is not None:
                    self.loop.stopping.leave_evaluation_if_asked(together=evenly or uneven)
                if counts and by_batch and self.compute_metrics and logits is not None and labels is not None:
                    losses = None if loss is None else loss.repeat(size)
                    results = self._batch_metrics(losses, logits, labels, inputs)
        if is_shared:
            kept.gather(self.processes)
            seen = int(self.processes.sum([seen])[0])
            if args.batch_eval_metrics:
                results = self._metrics_by_batch(kept)
        kept.to_numpy()
        if (sorted_batches := buckets_of(dataloader)) is not None and not sorted_batches.shuffle:
            kept.put_back(sorted_batches.order())
        if not args.batch_eval_metrics:
            results = self._metrics(kept)
        metrics = self._named(results, kept.mean_loss(args.logging_nan_inf_filter), metric_key_prefix)
        return EvalLoopOutput(predictions=kept.predictions, label_ids=kept.labels, metrics=metrics, num_samples=seen)

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
        return_loss = inputs.get("return_loss")
        return_loss = self.can_return_loss if return_loss is None else return_loss
        has_loss = has_labels or bool(not names and return_loss)
        if ignore_keys is None:
            config = getattr(self.model, "config", None)
            ignore_keys = list(getattr(config, "keys_to_ignore_at_inference", ["past_key_values"])) if config else []
        items = self._get_num_items_in_batch([inputs], self.args.device) if has_loss else None
        counts = {} if items is None else {"num_items_in_batch": items}
        inputs = self._prepare_inputs(inputs)
        labels = None
        if has_loss:  # before the loss is computed, which may take them out of the inputs
            labels = nested_detach(tuple(inputs.get(name) for name in names))
            labels = labels[0] if len(labels) == 1 else labels
        with torch.no_grad(), self.compute_loss_context_manager():
            if has_loss:
                if self.args.use_liger_kernel and prediction_loss_only:
                    inputs = {**inputs, "skip_logits": True}
                loss, outputs = self.compute_loss(model, inputs, return_outputs=True, **counts)
                loss = loss.detach().float().mean()
            else:
                loss, outputs = None, model(**inputs)
        if prediction_loss_only:
            return loss, None, None
        return loss, nested_detach(_logits(outputs, has_loss, ignore_keys)), labels

    # The model

    def _model_for_evaluation(self) -> nn.Module:
        """The model in eval mode; outside of training, in the number format of full evaluation."""
        args = self.args
        begun = time.time()
        model = self._wrap_model(self.model, training=False)
        if not self.processes.are_several:  # a replica, which is for training, stays what wraps the model
            self.model_wrapped = model
        if not self.accelerator._models:  # nothing has trained or evaluated before
            self.accelerator.prepare_model(model, device_placement=self.place_model_on_device)
            self.model_preparation_time = round(time.time() - begun, 4)
        if not self.is_in_train and (args.fp16_full_eval or args.bf16_full_eval):
            dtype = torch.float16 if args.fp16_full_eval else torch.bfloat16
            model = model.to(dtype=dtype, device=args.device)
        if callable(getattr(model, "eval", None)):
            model.eval()
        set_mode(self.optimizer, training=False)
        return model

    def _announce_evaluation(self, dataloader: DataLoader, description: str) -> None:
        logger.info("***** Running %s *****", description)
        logger.info("  Batch size = %d", self.args.eval_batch_size)

    # Metrics

    def _inputs_for_metrics(self, inputs: Any) -> Any:
        if "inputs" not in self.args.include_for_metrics:
            return None
        return self._prepare_input(inputs[self._mt_main_input_name])

    def _metrics(self, kept: Predictions) -> Mapping[str, Any]:
        if self.compute_metrics is None or kept.predictions is None or kept.labels is None:
            return {}
        wanted = self.args.include_for_metrics
        return self.compute_metrics(
            EvalPrediction(
                predictions=kept.predictions,
                label_ids=kept.labels,
                losses=kept.losses if "loss" in wanted else None,
                inputs=kept.inputs if "inputs" in wanted else None,
            )
        )

    def _metrics_by_batch(self, kept: Predictions) -> Mapping[str, Any]:
        """What compute_metrics makes of the batches of all processes, one after the other."""
        results: Mapping[str, Any] = {}
        batches = list(kept.by_batch())
        for number, (losses, logits, labels, inputs) in enumerate(batches):
            if self.compute_metrics is None or logits is None or labels is None:
                return {}
            self.accelerator.gradient_state.end_of_dataloader = number == len(batches) - 1
            results = self._batch_metrics(losses, logits, labels, inputs)
        return results

    def _batch_metrics(self, losses: Any, logits: Any, labels: Any, inputs: Any) -> Mapping[str, Any]:
        """What compute_metrics makes of one batch; after the last one, the metrics of all."""
        assert self.compute_metrics is not None
        wanted = self.args.include_for_metrics
        prediction = EvalPrediction(
            predictions=logits,
            label_ids=labels,
            losses=losses if "loss" in wanted else None,
            inputs=inputs if "inputs" in wanted else None,
        )
        is_last = self.accelerator.gradient_state.end_of_dataloader
        return self.compute_metrics(prediction, compute_result=is_last)

    def _named(self, metrics: Mapping[str, Any] | None, loss: float | None, prefix: str) -> dict[str, Any]:
        """Metrics as plain numbers under names that begin with `prefix`; the mean loss with them."""
        named: dict[str, Any] = {str(name): plain(value) for name, value in dict(metrics or {}).items()}
        if loss is not None:
            named[f"{prefix}_loss"] = loss
        if self.model_preparation_time is not None:
            named[f"{prefix}_model_preparation_time"] = self.model_preparation_time
        begins = f"{prefix}_"
        ready = {name: value for name, value in named.items() if name.startswith(begins)}
        return {**ready, **{begins + name: value for name, value in named.items() if name not in ready}}

    def _add_speed(self, output: EvalLoopOutput, start_time: float, prefix: str) -> None:
        start_time += output.metrics.get(f"{prefix}_model_preparation_time", 0.0)
        steps = math.ceil(output.num_samples / self.args.eval_batch_size)
        output.metrics.update(speed_metrics(prefix, start_time, num_samples=output.num_samples, num_steps=steps))


def _logits(outputs: Any, has_loss: bool, ignore_keys: list[str]) -> Any:
    """What is left of a model's outputs without the loss; alone if it is one thing."""
    if isinstance(outputs, dict):
        leave_out = [*ignore_keys, "loss"] if has_loss else ignore_keys
        left = [value for key, value in outputs.items() if key not in leave_out and value is not None]
    elif isinstance(outputs, torch.Tensor):
        left = [] if has_loss else [outputs]
    else:
        left = list(outputs[1:] if has_loss else outputs)
    if not left:
        return None
    return left[0] if len(left) == 1 else tuple(left)
