"""Traces a training step of a Trainer, on a copy, on the CPU."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from ...errors import MisconfigurationException
from .coverage_report import CoverageReport
from .recorder import REFUSED_ON_MPS, half
from .residency import Residency, named_tensors
from .tracer import Tracer

if TYPE_CHECKING:
    from ...trainer import Trainer


def trace_step(
    trainer: Trainer, batches: int = 1, *, fallback: bool | None = None, placed: Residency | None = None
) -> CoverageReport:
    """Traces the Trainer's training step and one batch of its evaluation as mps would run them.

    Runs whole steps (forward, loss, backward, clipping, optimizer) on the CPU until `batches` batches are done, at
    least one step. They run on a copy: the Trainer's weights, optimizer, state and random numbers stay as they are, no
    callback runs, and nothing is written. The copy, its gradients and its optimizer need memory for that long.

    Args:
        trainer: an `mps_trainer.Trainer`. Wrap a step of any other in `with Tracer()`.
        batches: how many batches of training to look at; more of them show more shapes.
        fallback: whether PYTORCH_ENABLE_MPS_FALLBACK counts as on; None: as it was when torch was imported.
        placed: the tensors that are known to be on the device. None: models that the Trainer keeps are assumed to be.

    Raises:
        MisconfigurationException: if there is nothing to train on, or the model cannot be copied.
    """
    from ...checkpoints.rng import rng_state, set_rng
    from ...model.patches.masks import AttentionMasks
    from ...model.preparation import model_patched, prepare_model
    from ...overrides import Overrides
    from ...trainer import Trainer
    from .stand_in import stand_in_for  # here, like the Trainer: the simulated device does without transformers

    if not isinstance(trainer, Trainer):
        raise MisconfigurationException(
            f"trace_step takes an mps_trainer.Trainer, and got {type(trainer).__module__}.{type(trainer).__name__}. "
            "Wrap a step of another trainer in `with Tracer() as tracer:` and ask tracer.report()."
        )
    overrides = Overrides.of(trainer)
    if trainer.train_dataset is None and not overrides.get_train_dataloader:
        raise MisconfigurationException("There is no step to trace: give the Trainer a train_dataset.")
    tracer = Tracer(fallback=fallback, unknown_on_device=False)
    tracer.recorder.own_trainer = True
    if placed is not None:
        tracer.residency.update(placed)
    rng = rng_state()
    try:
        stand_in = stand_in_for(trainer)
        stand_in._mt_overrides = overrides  # before the trace replaces methods of the copy
        stand_in._mt_attention_masks = AttentionMasks(torch.device("mps"))  # tensors say that they are there
        _watch_batches(stand_in, tracer)
        for name, kept in vars(trainer).items():
            if not isinstance(kept, torch.nn.Module):
                continue
            is_own = kept in (trainer.model, trainer.model_wrapped)
            if is_own or placed is None or any(placed.on_device(tensor) for _, tensor in named_tensors(kept)):
                tracer.on_device(getattr(stand_in, name))
            if not is_own and placed is None:
                tracer.recorder.note(f"The Trainer's {name} is assumed to be on the device. mps-trainer check knows.")
        tracer.recorder.module(stand_in.model)
        prepare_model(stand_in)
        with model_patched(stand_in, torch.device("mps")), _recomputed_on_any_device():
            _train(stand_in, tracer, batches)
            evaluate_batch(stand_in, tracer)
    finally:
        set_rng(rng)
    return tracer.report()


@contextlib.contextmanager
def _recomputed_on_any_device() -> Iterator[None]:
    """Makes activation checkpointing compare shapes and types of recomputed tensors inside, and not their devices.

    The backward pass recomputes outside the tracer's mode, where tensors say that they are on the CPU.
    """
    from torch.utils import checkpoint

    checks = getattr(checkpoint, "_allowed_determinism_checks_to_fns", {})
    plain = checks.get("default")
    if plain is None:
        yield
        return

    def shape_and_type(tensor: torch.Tensor) -> dict[str, Any]:
        return {name: value for name, value in plain(tensor).items() if name != "device"}

    checks["default"] = shape_and_type
    try:
        yield
    finally:
        checks["default"] = plain


def _watch_batches(stand_in: Trainer, tracer: Tracer) -> None:
    """Marks the tensors of a batch as being on the device when the Trainer moves it there."""
    prepare, casts = stand_in._prepare_inputs, not stand_in._mt_overrides.move_batches

    def watched(inputs: Any) -> Any:
        with tracer.paused():
            batch = copy.deepcopy(prepare(inputs))  # the device has memory of its own
            for name, tensor in named_tensors(batch):
                if tensor.dtype in REFUSED_ON_MPS:
                    remedy = f"Nothing: the Trainer makes it {half(tensor.dtype)} on its way to the device."
                    maker = _maker(stand_in, name)
                    tracer.recorder.column(name, maker, tensor, remedy if casts else None, fails=not casts)
                    if casts:
                        tensor.data = tensor.data.to(REFUSED_ON_MPS[tensor.dtype])
            tracer.on_device(batch)
        return batch

    stand_in._prepare_inputs = watched  # type: ignore[method-assign]


def _maker(trainer: Trainer, column: str) -> str:
    """Returns the type of a column in the dataset and the collator that made its tensor, as far as known."""
    collator = trainer.data_collator
    name = getattr(collator, "__name__", type(collator).__name__)
    try:
        value = trainer.train_dataset[0][column]
    except Exception:  # a stream, items that are no dictionaries, a column that the collator adds
        return f", made by {name}"
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    kind = f"Python {type(value).__name__}"
    if (dtype := getattr(value, "dtype", None)) is not None:
        kind = f"{type(value).__module__.partition('.')[0]}'s {dtype}"
    return f", {kind} in the dataset, made a tensor by {name}"


def _train(stand_in: Trainer, tracer: Tracer, batches: int) -> None:
    """Runs whole steps by the Trainer's own loop until `batches` batches are done, then logs as a subclass does."""
    from ...loop.run import TrainingRun

    stand_in.is_in_train = True
    stand_in.model.train()
    loop = TrainingRun(stand_in)
    loop.model.zero_grad()
    done = 0
    for update in loop.updates_of_epoch():  # loads the batches, outside the trace
        with tracer:
            loop.accumulate_batches(update.batches, update.num_items)
            with tracer.phase("optimizer"):
                loop.step_optimizer()
        done += len(update.batches)
        if done >= batches:
            break
    if not done:
        raise MisconfigurationException("There is no step to trace: the training dataset gave no batch.")
    if done < batches:
        tracer.recorder.note(few_batches(done, batches))
    if stand_in._mt_overrides.log and stand_in.args.logging_strategy != "no":
        loss, norm = loop.meter.read(stand_in.state.global_step, loop.position.grad_norm)
        logs = {"loss": loss, "grad_norm": norm, "learning_rate": loop.position.learning_rate}
        with tracer, tracer.phase("logging"):
            stand_in.log({name: value for name, value in logs.items() if value is not None}, time.time())


def few_batches(done: int, asked: int) -> str:
    """Returns the note about a run that has fewer batches than are asked for."""
    return f"The run has {done} batches, fewer than the {asked} asked for."


def evaluate_batch(trainer: Any, tracer: Tracer) -> None:
    """Traces the first batch of the evaluation of a Trainer, this one or transformers'; notes it if there is none."""
    dataset = trainer.eval_dataset
    first = [next(iter(dataset))] if isinstance(dataset, dict) else []
    try:
        batches = iter(trainer.get_eval_dataloader(*first))
    except ValueError:  # each Trainer raises it without an eval_dataset
        if dataset is not None:
            raise
        batches = iter(())
    if (batch := next(batches, None)) is None:
        tracer.recorder.note("There is no batch to evaluate on, so no evaluation was traced.")
        return
    trainer.is_in_train = False
    trainer.model.eval()
    loss_only = trainer.compute_metrics is None or trainer.args.prediction_loss_only
    with tracer, tracer.phase("evaluation"):
        _, logits, labels = trainer.prediction_step(trainer.model, batch, loss_only)
        if logits is not None and trainer.preprocess_logits_for_metrics is not None:
            trainer.preprocess_logits_for_metrics(logits, labels)
