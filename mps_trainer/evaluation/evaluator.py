"""Runs the evaluation loop: passes the batches of a loader through the model and computes metrics."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import nn
from transformers.trainer_pt_utils import find_batch_size
from transformers.trainer_utils import EvalLoopOutput, EvalPrediction, speed_metrics

from ..callbacks.events import Events
from ..checkpoints.rng import rng_state, set_rng
from ..data.batch_checks import BatchCheck
from ..data.buckets import buckets_of
from ..data.order import distributed_sampler, is_distributed, is_padding
from ..distributed import Processes, absent_named
from ..distributed.sharded import reshard_after
from ..guards.memory_growth import free_unused
from ..guards.out_of_memory import DeviceOutOfMemoryError, explained
from ..model import quantized
from ..model.introspection import base_model, main_input_name
from ..model.precision import MixedPrecision
from ..optim.factory import set_mode
from ..training_args import TrainingArguments
from .batches import in_dataset_order, in_step, watching_for_last
from .metrics import named_metrics
from .predictions import Predictions

logger = logging.getLogger(__name__)


class EvaluatedTrainer(Protocol):
    """Names what an evaluation uses of a Trainer, looked up at each use so that overrides are honoured."""

    args: TrainingArguments
    model: Any
    model_wrapped: nn.Module
    optimizer: Any
    callback_handler: Any
    compute_metrics: Any
    preprocess_logits_for_metrics: Any
    place_model_on_device: bool
    model_preparation_time: float | None
    is_in_train: bool
    is_fsdp_enabled: bool
    _mt_precision: MixedPrecision
    _mt_processes: Processes
    _mt_run: Any

    @property
    def _mt_events(self) -> Events: ...
    @property
    def evaluation_loop(self) -> Callable[..., EvalLoopOutput]: ...
    def prediction_step(self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None) -> Any: ...
    def _prepare_input(self, data: Any) -> Any: ...
    def _wrap_model(self, model: Any, training: bool = True) -> nn.Module: ...
    def _mt_close_workers(self, *loaders: Any) -> None: ...


class Evaluator:
    """Evaluates a loader without gradients and returns predictions, labels and metrics."""

    def __init__(self, trainer: EvaluatedTrainer) -> None:
        self.trainer = trainer
        self.end_of_dataloader = False  # whether the last batch is worked on

    def run(
        self, loader: Any, description: str, loss_only: bool, ignore_keys: list[str] | None, prefix: str
    ) -> EvalLoopOutput:
        """Returns predictions, labels and metrics for all batches of `loader`, of all processes."""
        trainer, args, processes = self.trainer, self.trainer.args, self.trainer._mt_processes
        model = _model_in_eval_mode(trainer)
        trainer.callback_handler.eval_dataloader = loader
        logger.info("***** Running %s *****", description)
        logger.info("  Batch size = %d", args.eval_batch_size)
        is_shared = processes.is_distributed and is_distributed(loader)
        by_batch = args.batch_eval_metrics and not is_shared
        kept = Predictions(args, keep_outputs=not by_batch or description == "Prediction", apart=is_shared)
        results: Mapping[str, Any] = {}
        seen = 0
        evenly = distributed_sampler(loader) is not None  # then all processes have as many batches
        uneven = trainer.is_fsdp_enabled and not evenly  # each pass of a sharded model waits for all processes
        check, in_order = BatchCheck(base_model(model)), in_dataset_order(loader) and not is_shared
        with reshard_after(model) if trainer.is_fsdp_enabled else contextlib.nullcontext():
            for inputs, counts in self._batches(loader, is_shared, uneven):
                size = find_batch_size(inputs) or args.eval_batch_size
                named = functools.partial(_name_row, description, seen if in_order else None)
                with check.watching(inputs, named):
                    loss, logits, labels = trainer.prediction_step(model, inputs, loss_only, ignore_keys=ignore_keys)
                if logits is not None and trainer.preprocess_logits_for_metrics is not None:
                    logits = trainer.preprocess_logits_for_metrics(logits, labels)
                if counts:
                    seen += size
                    kept.add(loss, size, logits, labels, self._main_input(inputs))
                    trainer._mt_events.fire("on_prediction_step")
                if trainer._mt_run is not None:
                    trainer._mt_run.preemption.leave_evaluation_if_asked(evenly or uneven)
                if counts and by_batch and trainer.compute_metrics and logits is not None and labels is not None:
                    losses = None if loss is None else loss.repeat(size)
                    results = self._metrics_of_batch(losses, logits, labels, inputs)
        if is_shared:
            kept.gather(processes)
            seen = int(processes.sum([seen])[0])
            if args.batch_eval_metrics:
                results = self._metrics_by_batch(kept)
        kept.to_numpy()
        if (sorted_batches := buckets_of(loader)) is not None and not sorted_batches.shuffle:
            kept.put_back(sorted_batches.order())
        if not args.batch_eval_metrics:
            results = self._metrics(kept.losses, kept.predictions, kept.labels, kept.inputs)
        if (report := trainer._mt_events.report) is not None and description == "Evaluation":
            # sorted predictions, as with group_by_length, are no rows of the dataset
            dataset = loader.dataset if in_dataset_order(loader) else None
            report.predicted(kept.predictions, kept.labels, dataset)
        mean_loss = kept.mean_loss(args.logging_nan_inf_filter)
        metrics = named_metrics(results, prefix, mean_loss, trainer.model_preparation_time)
        return EvalLoopOutput(predictions=kept.predictions, label_ids=kept.labels, metrics=metrics, num_samples=seen)

    def _main_input(self, inputs: Any) -> Any:
        """Returns the model's main input on the device, for metrics that ask for inputs; else None."""
        if "inputs" not in self.trainer.args.include_for_metrics:
            return None
        return self.trainer._prepare_input(inputs[main_input_name(self.trainer.model)])

    def _batches(self, loader: Any, is_shared: bool, uneven: bool) -> Iterator[tuple[Any, bool]]:
        """Yields the batches, each with True if it counts in this process."""
        batches = watching_for_last(loader, self)
        pairs = (
            in_step(batches, self.trainer._mt_processes)
            if uneven
            else zip(batches, itertools.repeat(True), strict=False)
        )
        for number, (inputs, counts) in enumerate(pairs):
            yield inputs, counts and not (is_shared and is_padding(loader, number))

    def _metrics_by_batch(self, kept: Predictions) -> Mapping[str, Any]:
        """Calls compute_metrics on the batches of all processes one by one and returns the metrics."""
        results: Mapping[str, Any] = {}
        batches = list(kept.by_batch())
        for number, (losses, logits, labels, inputs) in enumerate(batches):
            if logits is None or labels is None:
                return {}
            self.end_of_dataloader = number == len(batches) - 1
            results = self._metrics_of_batch(losses, logits, labels, inputs)
        return results

    def _metrics_of_batch(self, losses: Any, logits: Any, labels: Any, inputs: Any) -> Mapping[str, Any]:
        """Calls compute_metrics on one batch. After the last one it returns the metrics of all batches."""
        return self._metrics(losses, logits, labels, inputs, compute_result=self.end_of_dataloader)

    def _metrics(self, losses: Any, logits: Any, labels: Any, inputs: Any, **settings: bool) -> Mapping[str, Any]:
        """Returns the result of compute_metrics on the predictions, or {} without labels."""
        compute_metrics = self.trainer.compute_metrics
        if compute_metrics is None or logits is None or labels is None:
            return {}
        wanted = self.trainer.args.include_for_metrics
        prediction = EvalPrediction(
            predictions=logits,
            label_ids=labels,
            losses=losses if "loss" in wanted else None,
            inputs=inputs if "inputs" in wanted else None,
        )
        return compute_metrics(prediction, **settings)


def _name_row(description: str, before: int | None, row: int) -> str:
    """Returns a description of a row of a batch, `before` rows after the beginning of the dataset."""
    return f"Row {row} of a batch" if before is None else f"Row {before + row} of the {description.lower()} dataset"


def _model_in_eval_mode(trainer: EvaluatedTrainer) -> nn.Module:
    """Returns the model in eval mode, in the number format of the arguments if no run trains it.

    Measures its preparation on first use.
    """
    begun, args = time.time(), trainer.args
    model = trainer._wrap_model(trainer.model, training=False)
    if not trainer._mt_processes.is_distributed:  # a replica, which is for training, stays what wraps the model
        trainer.model_wrapped = model
    if not trainer._mt_precision.has_model:
        trainer._mt_precision.prepare(model, place=trainer.place_model_on_device)
        trainer.model_preparation_time = round(time.time() - begun, 4)
    if not trainer.is_in_train and (args.fp16_full_eval or args.bf16_full_eval):
        model = quantized.move(model, args.device, torch.float16 if args.fp16_full_eval else torch.bfloat16)
    if callable(getattr(model, "eval", None)):
        model.eval()
    set_mode(trainer.optimizer, training=False)
    return model


def evaluate_dataset(
    trainer: EvaluatedTrainer, loader: Any, make_loader: Callable[[], Any], **settings: Any
) -> EvalLoopOutput:
    """Returns the output of the Trainer's `evaluation_loop` with speed metrics.

    With `auto_find_batch_size` it begins again with half the batch when memory runs out.

    Args:
        make_loader: makes the loader again, with the batch of the arguments.
        settings: of `evaluation_loop`, beside the loader.
    """
    args, doing, prefix = trainer.args, settings["description"].lower(), settings["metric_key_prefix"]
    start_time, before = time.time(), None
    while True:
        if args.auto_find_batch_size:
            before = rng_state()  # a loader draws
        try:
            precision = trainer._mt_precision.applied_to(trainer.model)  # also for an override of evaluation_loop
            with absent_named(doing), explained(trainer, doing), precision:
                output = trainer.evaluation_loop(loader, **settings)
            break
        except DeviceOutOfMemoryError:
            trainer._mt_close_workers(loader)
            # compute_metrics already has metrics of single batches, and would count some twice
            if before is None or args.eval_batch_size == 1 or args.batch_eval_metrics:
                raise
        finally:
            if not trainer.is_in_train:
                trainer._mt_close_workers(loader)
        _halve_batch(trainer)
        free_unused(args.device)
        set_rng(before)
        loader = make_loader()
    start_time += output.metrics.get(f"{prefix}_model_preparation_time", 0.0)
    samples, steps = output.num_samples, math.ceil(output.num_samples / args.eval_batch_size)
    output.metrics.update(speed_metrics(prefix, start_time, num_samples=samples, num_steps=steps))
    return output


def _halve_batch(trainer: EvaluatedTrainer) -> None:
    """Halves the batch size of evaluations and logs a warning."""
    before = trainer.args.eval_batch_size
    size = trainer.args.per_device_eval_batch_size = -(-before // 2)
    logger.warning(
        "Memory ran out in an evaluation with batches of %d examples: starting again with %d.", before, size
    )
    note = f"Memory ran out in an evaluation. From here on its batches have {size} examples."
    trainer._mt_events.note("warning", note)
