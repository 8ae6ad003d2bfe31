"""Runs the evaluation loop: passes the batches of a loader through the model and computes metrics."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.trainer_pt_utils import find_batch_size
from transformers.trainer_utils import EvalLoopOutput, EvalPrediction, speed_metrics

from ..checkpoints.rng import rng_state, set_rng
from ..data import shares
from ..data.batch_checks import BatchCheck
from ..data.buckets import buckets_of
from ..distributed import Processes, absent_named
from ..distributed.sharded import reshard_after
from ..guards.memory_growth import free_unused
from ..guards.out_of_memory import DeviceOutOfMemoryError, RunDescription, explained
from ..model import quantized
from ..model.introspection import base_model
from ..training_args import TrainingArguments
from .batches import in_dataset_order, in_step, watching_for_last
from .metrics import named_metrics
from .predictions import Predictions

logger = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class Evaluator:
    """Evaluates a loader without gradients and returns predictions, labels and metrics.

    Args:
        model: as it is called, in eval mode.
        is_sharded: every pass waits for all processes.
        preparation_time: seconds that it took to make the model ready; None if nothing had to be done.
        gradient_state: told by `end_of_dataloader` which batch is the last.
        prediction_step: `(model, inputs, prediction_loss_only, ignore_keys) -> (loss, logits, labels)`.
        preprocess_logits: returns `(logits, labels) -> logits` to keep, or None; it is asked at each batch.
        compute_metrics: returns `EvalPrediction -> metrics`, or None; it is asked when metrics are due.
        main_input: `inputs -> value` on the device, for metrics that ask for inputs.
        fire: tells the callbacks of an event.
        leave_if_asked: `together`: raises if a signal asks for the end of the run; None outside of one.
        keep_predictions: `(logits, labels, dataset)`, after an evaluation. The dataset is None if the predictions are
            in another order, as with group_by_length: their positions are no rows then. None where nobody keeps them.
    """

    args: TrainingArguments
    model: nn.Module
    is_sharded: bool
    preparation_time: float | None
    processes: Processes
    gradient_state: Any
    prediction_step: Callable[..., tuple[torch.Tensor | None, Any, Any]]
    preprocess_logits: Callable[[], Callable[[Any, Any], Any] | None]
    compute_metrics: Callable[[], Callable[..., Mapping[str, Any]] | None]
    main_input: Callable[[Any], Any]
    fire: Callable[[str], None]
    leave_if_asked: Callable[[bool], None] | None
    keep_predictions: Callable[[Any, Any, Any], None] | None = None

    def run(
        self, loader: Any, description: str, loss_only: bool, ignore_keys: list[str] | None, prefix: str
    ) -> EvalLoopOutput:
        """Returns predictions, labels and metrics for all batches of `loader`, of all processes."""
        args = self.args
        logger.info("***** Running %s *****", description)
        logger.info("  Batch size = %d", args.eval_batch_size)
        is_shared = self.processes.is_distributed and shares.is_shared(loader)
        by_batch = args.batch_eval_metrics and not is_shared
        kept = Predictions(args, keep_outputs=not by_batch or description == "Prediction", apart=is_shared)
        results: Mapping[str, Any] = {}
        seen = 0
        evenly = shares.shares_of(loader) is not None  # as many batches in all processes
        uneven = self.is_sharded and not evenly
        check, in_order = BatchCheck(base_model(self.model)), in_dataset_order(loader) and not is_shared
        with reshard_after(self.model) if self.is_sharded else contextlib.nullcontext():
            for inputs, counts in self._batches(loader, is_shared, uneven):
                size = find_batch_size(inputs) or args.eval_batch_size
                named = functools.partial(_name_row, description, seen if in_order else None)
                with check.watching(inputs, named):
                    loss, logits, labels = self.prediction_step(self.model, inputs, loss_only, ignore_keys=ignore_keys)
                if logits is not None and (preprocess := self.preprocess_logits()) is not None:
                    logits = preprocess(logits, labels)
                if counts:
                    seen += size
                    wanted = self.main_input(inputs) if "inputs" in args.include_for_metrics else None
                    kept.add(loss, size, logits, labels, wanted)
                    self.fire("on_prediction_step")
                if self.leave_if_asked is not None:
                    self.leave_if_asked(evenly or uneven)
                if counts and by_batch and self.compute_metrics() and logits is not None and labels is not None:
                    losses = None if loss is None else loss.repeat(size)
                    results = self._metrics_of_batch(losses, logits, labels, inputs)
        if is_shared:
            kept.gather(self.processes)
            seen = int(self.processes.sum([seen])[0])
            if args.batch_eval_metrics:
                results = self._metrics_by_batch(kept)
        kept.to_numpy()
        if (sorted_batches := buckets_of(loader)) is not None and not sorted_batches.shuffle:
            kept.put_back(sorted_batches.order())
        if not args.batch_eval_metrics:
            results = self._metrics(kept.losses, kept.predictions, kept.labels, kept.inputs)
        if self.keep_predictions is not None and description == "Evaluation":
            dataset = loader.dataset if in_dataset_order(loader) else None
            self.keep_predictions(kept.predictions, kept.labels, dataset)
        mean_loss = kept.mean_loss(args.logging_nan_inf_filter)
        metrics = named_metrics(results, prefix, mean_loss, self.preparation_time)
        return EvalLoopOutput(predictions=kept.predictions, label_ids=kept.labels, metrics=metrics, num_samples=seen)

    def _batches(self, loader: Any, is_shared: bool, uneven: bool) -> Iterator[tuple[Any, bool]]:
        """Yields the batches, each with True if it counts in this process."""
        batches = watching_for_last(loader, self.gradient_state)
        pairs = in_step(batches, self.processes) if uneven else zip(batches, itertools.repeat(True), strict=False)
        for number, (inputs, counts) in enumerate(pairs):
            yield inputs, counts and not (is_shared and shares.is_padding(loader, number))

    def _metrics_by_batch(self, kept: Predictions) -> Mapping[str, Any]:
        """Calls compute_metrics on the batches of all processes one by one and returns the metrics."""
        results: Mapping[str, Any] = {}
        batches = list(kept.by_batch())
        for number, (losses, logits, labels, inputs) in enumerate(batches):
            if logits is None or labels is None:
                return {}
            self.gradient_state.end_of_dataloader = number == len(batches) - 1
            results = self._metrics_of_batch(losses, logits, labels, inputs)
        return results

    def _metrics_of_batch(self, losses: Any, logits: Any, labels: Any, inputs: Any) -> Mapping[str, Any]:
        """Calls compute_metrics on one batch. After the last one it returns the metrics of all batches."""
        return self._metrics(losses, logits, labels, inputs, compute_result=self.gradient_state.end_of_dataloader)

    def _metrics(self, losses: Any, logits: Any, labels: Any, inputs: Any, **settings: bool) -> Mapping[str, Any]:
        """Returns the result of compute_metrics on the predictions, or {} without labels."""
        compute_metrics = self.compute_metrics()
        if compute_metrics is None or logits is None or labels is None:
            return {}
        wanted = self.args.include_for_metrics
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


def in_batches_that_fit(
    evaluation_loop: Callable[..., EvalLoopOutput],
    loader: Any,
    make_loader: Callable[[], Any],
    settings: Mapping[str, Any],
    *,
    args: TrainingArguments,
    is_in_train: bool,
    describe_run: Callable[[], RunDescription],
    close_workers: Callable[[Any], None],
    note: Callable[[str, str], None],
) -> EvalLoopOutput:
    """Returns the output of the loop with speed metrics.

    With `auto_find_batch_size` it begins again with half the batch when memory runs out.

    Args:
        make_loader: makes it again, with the batch of the arguments.
        settings: of `evaluation_loop`, beside the loader.
        is_in_train: within a run, whose next evaluation uses the loader's workers again.
        close_workers: `loader`: ends its worker processes, and those that persist between evaluations.
        note: `(kind, text)` for the report of the run.
    """
    doing, prefix = settings["description"].lower(), settings["metric_key_prefix"]
    start_time, before = time.time(), None
    while True:
        if args.auto_find_batch_size:
            before = rng_state()  # a loader draws
        try:
            with absent_named(doing), explained(describe_run, doing):
                output = evaluation_loop(loader, **settings)
            break
        except DeviceOutOfMemoryError:
            close_workers(loader)
            # metrics of single batches are in the hands of compute_metrics, which would count some twice
            if before is None or args.eval_batch_size == 1 or args.batch_eval_metrics:
                raise
        finally:
            if not is_in_train:
                close_workers(loader)
        halve_batch(args, note)
        free_unused(args.device)
        set_rng(before)
        loader = make_loader()
    start_time += output.metrics.get(f"{prefix}_model_preparation_time", 0.0)
    samples, steps = output.num_samples, math.ceil(output.num_samples / args.eval_batch_size)
    output.metrics.update(speed_metrics(prefix, start_time, num_samples=samples, num_steps=steps))
    return output


def halve_batch(args: TrainingArguments, note: Callable[[str, str], None]) -> None:
    """Halves the batch size of evaluations and logs a warning."""
    before, args.per_device_eval_batch_size = args.eval_batch_size, -(-args.eval_batch_size // 2)
    size = args.per_device_eval_batch_size
    logger.warning(
        "Memory ran out in an evaluation with batches of %d examples: starting again with %d.", before, size
    )
    note("warning", f"Memory ran out in an evaluation. From here on its batches have {size} examples.")


def in_eval_mode(model: nn.Module, args: TrainingArguments, is_in_train: bool) -> nn.Module:
    """Returns the model in eval mode; outside of training, in the number format of full evaluation."""
    if not is_in_train and (args.fp16_full_eval or args.bf16_full_eval):
        model = quantized.move(model, args.device, torch.float16 if args.fp16_full_eval else torch.bfloat16)
    if callable(getattr(model, "eval", None)):
        model.eval()
    return model
