"""Runs the evaluation loop: passes the batches of a loader through the model and computes metrics."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from transformers.trainer_utils import EvalLoopOutput, speed_metrics

from ..callbacks import close_display
from ..callbacks.events import Events
from ..checkpoints.rng import rng_state, set_rng
from ..data.batch_checks import BatchCheck
from ..data.epoch_loader import host_batches, read_alike
from ..data.missing_columns import explain_missing_columns
from ..data.order import distributed_sampler, is_distributed, is_filler
from ..data.transfer import BatchTransfer
from ..data.workers import close_workers
from ..distributed import Processes, absent_named
from ..distributed.sharded import reshard_after
from ..guards.memory import free_unused
from ..guards.memory_errors import DescribedTrainer, DeviceOutOfMemoryError, explained
from ..model import quantized
from ..model.introspection import base_model, main_input_name
from ..model.number_formats import explain_format
from ..model.precision import MixedPrecision
from ..optim.factory import set_mode
from ..overrides import Overrides
from ..utils.nested import find_batch_size
from ..utils.text_layout import forget_layouts
from .batches import examples_in, in_step, is_sequential, order_of_rows, with_last
from .metric_calls import MeasuredTrainer, MetricCalls
from .metrics import named_metrics
from .predictions import Predictions, mean_loss

logger = logging.getLogger(__name__)


class EvaluatedTrainer(MeasuredTrainer, DescribedTrainer, Protocol):
    """Names what an evaluation uses of a Trainer, in transformers' names.

    Each is looked up when it is used, so that overrides and what scripts set are honoured.
    """

    model_wrapped: nn.Module
    eval_dataset: Any
    optimizer: Any
    callback_handler: Any
    processing_class: Any
    preprocess_logits_for_metrics: Any
    place_model_on_device: bool
    model_preparation_time: float | None
    is_in_train: bool
    is_fsdp_enabled: bool
    _eval_dataloaders: dict[str, Any]

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]: ...
    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput: ...
    def prediction_step(self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None) -> Any: ...
    def _prepare_input(self, data: Any) -> Any: ...
    def _wrap_model(self, model: Any, training: bool = True) -> nn.Module: ...


class RunUnderWay(Protocol):
    """Names what an evaluation within a run tells it."""

    @property
    def preemption(self) -> Any: ...  # the loop's PreemptionHandler
    def note_progress(self) -> None: ...
    def unpad_for_loss(self, batch: Any) -> Any: ...


@dataclass(frozen=True)
class EvaluationParts:
    """The parts of a Trainer that an evaluation works with.

    Args:
        overrides: the overridden methods.
        transfer: moves batches to the device.
        run: the training run that the evaluation is a part of, or None.
        warned: the warnings about `compute_metrics` that this Trainer has given.
    """

    processes: Processes
    events: Events
    precision: MixedPrecision
    overrides: Overrides
    transfer: BatchTransfer
    run: RunUnderWay | None
    warned: set[str]

    @classmethod
    def of(cls, trainer: Any) -> EvaluationParts:
        """Returns the parts of `trainer`, an mps_trainer.Trainer."""
        return cls(
            processes=trainer._mt_processes,
            events=trainer._mt_events,
            precision=trainer._mt_precision,
            overrides=trainer._mt_overrides,
            transfer=trainer._mt_transfer,
            run=trainer._mt_run,
            warned=trainer._mt_warned,
        )


def run_evaluation(
    trainer: EvaluatedTrainer,
    parts: EvaluationParts,
    loader: Any,
    description: str,
    loss_only: bool,
    ignore_keys: list[str] | None,
    prefix: str,
) -> EvalLoopOutput:
    """Returns predictions, labels and metrics for all batches of `loader`, of all processes, without gradients."""
    args, processes, preprocess = trainer.args, parts.processes, trainer.preprocess_logits_for_metrics
    model = _model_in_eval_mode(trainer, parts)
    trainer.callback_handler.eval_dataloader = loader
    logger.info("***** Running %s *****", description)
    logger.info("  Batch size = %d", args.eval_batch_size)
    is_shared = processes.is_distributed and is_distributed(loader)
    read_alike(loader, processes)
    by_batch = args.batch_eval_metrics and not is_shared
    kept = Predictions(args, keep_outputs=not by_batch or description == "Prediction", apart=is_shared)
    metrics_of = MetricCalls(
        trainer,
        parts.events,
        parts.warned,
        loss_only=loss_only,
        needs_labels=description != "Prediction",
        is_overridden=parts.overrides.prediction_step,
    )
    results: Any = {}
    seen = 0
    is_even = distributed_sampler(loader) is not None  # then all processes have as many batches
    is_uneven = trainer.is_fsdp_enabled and not is_even  # each pass of a sharded model waits for all processes
    check, in_order = BatchCheck(base_model(model)), is_sequential(loader) and not is_shared
    batches = with_last(host_batches(loader))
    is_seen = parts.overrides.see_evaluation_batches or (by_batch and "inputs" in args.include_for_metrics)
    move = parts.transfer.before_other_code(is_seen)
    steps = in_step(batches, processes) if is_uneven else zip(batches, itertools.repeat(True), strict=False)

    def unpad(batch: Any) -> Any:
        if parts.run is None:
            return batch
        if loss_only:
            return parts.run.unpad_for_loss(batch)
        forget_layouts(batch)  # the loader may give tensors again from which padding was left out
        return batch

    def name_row(row: int) -> str:
        return f"Row {seen + row} of the {description.lower()} dataset" if in_order else f"Row {row} of a batch"

    with reshard_after(model) if trainer.is_fsdp_enabled else contextlib.nullcontext():
        for number, ((inputs, is_last), counts) in enumerate(steps):
            counts = counts and not (is_shared and is_filler(loader, number))
            size = examples_in(loader, number, find_batch_size(inputs) or args.eval_batch_size)
            try:
                with check.watching(inputs, name_row):
                    batch = unpad(inputs)
                    is_same, batch = batch is inputs, move(batch)
                    inputs = batch if is_same else inputs
                    loss, logits, labels = trainer.prediction_step(model, batch, loss_only, ignore_keys=ignore_keys)
            except Exception as error:
                explain_missing_columns(error, loader, inputs, needs_labels=False)
                raise
            outputs = logits
            if logits is not None and preprocess is not None:
                logits = preprocess(logits, labels)
            metrics_of.add_batch(inputs, outputs, logits, labels)
            if counts:
                seen += size
                main_input = None
                if "inputs" in args.include_for_metrics and not by_batch:
                    if args.batch_eval_metrics:  # compute_metrics gets all inputs then
                        main_input = {name: each for name, each in inputs.items() if torch.is_tensor(each)}
                    else:
                        main_input = trainer._prepare_input(inputs[main_input_name(trainer.model)])
                kept.add(loss, size, logits, labels, main_input)
                parts.events.fire("on_prediction_step")
            if parts.run is not None:
                parts.run.note_progress()
                parts.run.preemption.leave_evaluation_if_asked(is_even or is_uneven)
            if counts and by_batch and logits is not None and labels is not None:
                losses = None if loss is None else loss.repeat(size)
                results = metrics_of(losses, logits, labels, inputs, compute_result=is_last)
    if is_shared:
        kept.gather(processes)
        seen = int(processes.sum([seen])[0])
        if args.batch_eval_metrics:
            for batch, is_last in with_last(kept.by_batch()):
                results = metrics_of(*batch, compute_result=is_last)
    order = order_of_rows(loader)
    losses, predictions, labels, inputs = kept.arrays(order)
    if not args.batch_eval_metrics:
        results = metrics_of(losses, predictions, labels, inputs)
    metrics_of.warn_if_never_called()
    if (report := parts.events.report) is not None and description == "Evaluation":
        dataset = None if order is None and not is_sequential(loader) else loader.dataset
        report.predicted(predictions, labels, dataset, trainer.model, trainer.processing_class)
    loss = mean_loss(losses, args.logging_nan_inf_filter)
    metrics = named_metrics(results, prefix, loss, trainer.model_preparation_time)
    return EvalLoopOutput(predictions=predictions, label_ids=labels, metrics=metrics, num_samples=seen)


def _model_in_eval_mode(trainer: EvaluatedTrainer, parts: EvaluationParts) -> nn.Module:
    """Returns the model in eval mode, in the number format of the arguments if no run trains it.

    Measures its preparation on first use.
    """
    begun, args = time.time(), trainer.args
    model = trainer._wrap_model(trainer.model, training=False)
    if not parts.processes.is_distributed:  # a replica, which is for training, stays what wraps the model
        trainer.model_wrapped = model
    if not parts.precision.has_model:
        parts.precision.prepare(model, place=trainer.place_model_on_device)
        trainer.model_preparation_time = round(time.time() - begun, 4)
    if not trainer.is_in_train and (args.fp16_full_eval or args.bf16_full_eval):
        model = quantized.move(model, args.device, torch.float16 if args.fp16_full_eval else torch.bfloat16)
    if callable(getattr(model, "eval", None)):
        model.eval()
    set_mode(trainer.optimizer, training=False)
    return model


def evaluate_each(
    trainer: EvaluatedTrainer, given: dict[str, Any] | None, prefix: str, **settings: Any
) -> dict[str, float]:
    """Returns the metrics of all datasets of a dictionary, under names that begin with the dataset's.

    Args:
        given: the dictionary; None for the Trainer's.
        settings: of `evaluate`, for each dataset.
    """
    datasets = {name: name for name in trainer.eval_dataset} if given is None else given
    found: dict[str, float] = {}
    for name, dataset in datasets.items():
        found |= trainer.evaluate(eval_dataset=dataset, metric_key_prefix=f"{prefix}_{name}", **settings)
    return found


def evaluate_dataset(
    trainer: EvaluatedTrainer, parts: EvaluationParts, loader: Any, make_loader: Callable[[], Any], **settings: Any
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
            precision = parts.precision.applied_to(trainer.model)  # an override of evaluation_loop needs it
            with absent_named(doing), explained(trainer, doing), precision:
                output = trainer.evaluation_loop(loader, **settings)
            break
        except BaseException as error:
            explain_format(error)
            close_display(trainer.callback_handler.callbacks, of_evaluation=True)
            if not isinstance(error, DeviceOutOfMemoryError):
                raise
            close_workers(loader, *trainer._eval_dataloaders.values())
            # compute_metrics already has metrics of single batches, and would count some twice
            if before is None or args.eval_batch_size == 1 or args.batch_eval_metrics:
                raise
        finally:
            if not trainer.is_in_train:
                close_workers(loader, *trainer._eval_dataloaders.values())
        size = args.per_device_eval_batch_size = -(-args.eval_batch_size // 2)
        logger.warning("Memory ran out in an evaluation: starting again with batches of %d examples.", size)
        parts.events.note(
            "warning", f"Memory ran out in an evaluation. From here on its batches have {size} examples."
        )
        free_unused(args.device)
        set_rng(before)
        trainer._eval_dataloaders.clear()  # kept loaders have the larger batches
        loader = make_loader()
    start_time += output.metrics.get(f"{prefix}_model_preparation_time", 0.0)
    samples = output.num_samples
    steps = math.ceil(samples / (args.eval_batch_size * args.world_size))
    output.metrics.update(speed_metrics(prefix, start_time, num_samples=samples, num_steps=steps))
    return output
