"""Runs the training loop: epochs, updates and batches."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, SupportsFloat

import torch
from torch import nn
from transformers.trainer_callback import TrainerControl, TrainerState
from transformers.trainer_utils import TrainOutput, speed_metrics

from ..callbacks.announce import announce
from ..callbacks.events import Events
from ..checkpoints import run_files
from ..checkpoints.rng import read_rng
from ..data.batch_checks import BatchCheck
from ..data.buckets import buckets_of
from ..data.data_rng import DataRngState
from ..data.shares import shares_of
from ..distributed import Processes
from ..distributed.ddp import no_sync
from ..guards.memory_growth import MemoryGuard
from ..guards.signals import SignalHandler
from ..model.introspection import base_model
from ..model.precision import MixedPrecision
from ..optim.factory import follows_metric
from ..overrides import Overrides
from ..training_args import TrainingArguments
from .accelerate_facade import Accelerator
from .gradients import Gradients
from .hooks import Checkpointing, Hooks, Stateful, StatePair
from .meter import LossMeter
from .microbatches import MicrobatchSplitter
from .nonfinite import BatchHistory, ModelBuffers, NonFiniteReporter, StopOnNan
from .plan import StepPlan
from .preemption import EvaluationLeftError, PreemptionHandler
from .resumed_rng import ResumedRng

logger = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class TrainingRun:
    """Runs one training. Holds the state of the run: plan, meter and position.

    Nothing between two logs reads a value from the device: its queue is not drained for a number that nobody looks at.

    Args:
        model: as it is called: compiled, or one of several replicas, if the arguments say so.
        loader: of the training batches.
        counts: what the batches of the run have added up to.
        batch_size: examples in a batch of the loader.
        optimizer, lr_scheduler: return those of the Trainer, which a callback may replace.
        update_size: examples in an optimizer step of all processes.
        examples_at_a_time: that are known to fit into memory; None: whole batches.
        num_examples: in the training dataset, if its length is known.
        num_train_samples: the examples of all steps of the plan.
    """

    args: TrainingArguments
    model: nn.Module
    optimizer: Callable[[], Any]
    lr_scheduler: Callable[[], Any]
    loader: Any
    plan: StepPlan
    accelerator: Accelerator
    precision: MixedPrecision
    processes: Processes
    events: Events
    hooks: Hooks
    checkpointing: Checkpointing
    overrides: Overrides
    counts: Stateful
    memory_guard: MemoryGuard | None = None
    batch_size: int
    update_size: int
    examples_at_a_time: int | None = None
    num_examples: int
    num_train_samples: float

    def __post_init__(self) -> None:
        args, events, processes = self.args, self.events, self.processes
        buckets = buckets_of(self.loader)
        self.parts = 1 if buckets is None else buckets.parts  # that a batch of the arguments' size comes in
        scaled = self.precision.scaler is not None
        self.meter = LossMeter(args.device, args.logging_nan_inf_filter, scaled, processes)
        in_order = self.overrides.allow("naming rows of the dataset in warnings", "get_batch_samples")
        self.history = BatchHistory(self.loader, self.plan, in_order)
        self.gradients = Gradients(self.model, self.optimizer, self.accelerator, events, self.overrides)
        # one that a subclass returns may be changed by it before it is read
        self.owns_losses = not self.overrides.has("training_step")
        self.waits_at_each_step = not self.overrides.allow(
            "steps that do not wait for the loss", "_maybe_log_save_evaluate"
        )
        self.batch_check = BatchCheck(base_model(self.model))
        self.data_rng = DataRngState(self.loader)
        self.resume_from: str | None = None
        self.resumed_rng = ResumedRng(self.checkpointing.load_rng)
        self.update_begins_at = 0  # batches of the epoch before those of the update under way
        self.grad_norm: torch.Tensor | float | None = None
        self.learning_rate: float | None = None
        self.signals = SignalHandler(args.save_on_signal, processes)
        self.preemption = PreemptionHandler(
            self.signals, events, args, processes, self.checkpointing, self._log_before_stop
        )
        self.nonfinite = NonFiniteReporter(self.meter.watch, self.history, events, args.mixed_precision)
        self.splitter = self._splitter() if args.auto_find_batch_size else None
        self.stop_on_nan = self._nan_guard() if args.stop_on_nan else None
        self.load_state_dict({})

    def _splitter(self) -> MicrobatchSplitter:
        hooks = self.hooks
        return MicrobatchSplitter(
            train_on=self.accumulate,
            begin_again=self._noted_update,
            divisors=hooks.divisors,
            item_counts=hooks.item_counts,
            split_batch=hooks.split_batch,
            optimizer=self.optimizer,
            events=self.events,
            device=self.args.device,
            batch_size=self.batch_size,
            most=self.examples_at_a_time,
        )

    def _nan_guard(self) -> StopOnNan:
        parts: dict[str, Stateful] = {
            "data_rng": self.data_rng,
            "rng": self.resumed_rng,
            "meter": self.meter,
            "position": StatePair(lambda: (self.here, not self.update_begins_at), self._go_back_to),
            "counts": self.counts,
            "buffers": ModelBuffers(self.model),
        }
        return StopOnNan(
            parts,
            self.meter,
            self.nonfinite,
            self.gradients,
            self.precision,
            self.checkpointing,
            self.hooks.get_learning_rate,
            self.processes,
            self.args.should_save,
        )

    @property
    def state(self) -> TrainerState:
        return self.events.state

    @property
    def control(self) -> TrainerControl:
        return self.events.control

    # The state of the run

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the run that the step number does not contain."""
        epoch, batches = self.here
        return {
            **self.meter.state_dict(),
            "epoch_has_ended": self.epoch_has_ended,
            "epoch": epoch,
            "batches": batches,
            "due": self.preemption.due,
            **({} if self.splitter is None else {run_files.AT_A_TIME: self.splitter.most}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes the run after the step of its state. `state` is {} for a checkpoint of transformers."""
        step = self.state.global_step
        self.first_step = step
        self.here = self.plan.epoch_of(step), self.plan.batches_done(step)
        if self.plan.batches_per_epoch is None and "epoch" in state:  # the plan cannot know
            self.here = state["epoch"], state["batches"]
            if state["epoch_has_ended"]:
                self.here = state["epoch"] + 1, 0
        self.epoch_has_ended = state.get("epoch_has_ended", True)
        self.preemption.due = state.get("due", [])
        self.meter.begin_at(step)
        if state:
            self.meter.load_state_dict(state)

    def resume(self, folder: str) -> None:
        """Loads weights, optimizer, schedule, position and generators from a checkpoint.

        Raises:
            MisconfigurationException: if the checkpoint is damaged, or not one of this model and optimizer.
        """
        self.checkpointing.load(folder)
        saved = read_rng(folder, self.processes.rank, self.processes.size)
        self.load_state_dict(run_files.position_of_all(saved, folder, self.processes.size))
        self.resume_from = folder
        self.resumed_rng.resume_from(folder, saved)
        self.data_rng.load_state_dict(saved)

    def _go_back_to(self, position: tuple[tuple[int, int], bool]) -> None:
        self.here, self.epoch_has_ended = position

    def _noted_update(self) -> Callable[[], None]:
        """Returns a function that undoes a partial update."""
        counted = self.counts.state_dict()

        def undo() -> None:
            self.gradients.clear()
            self.meter.take_back(self.state.global_step)
            self.counts.load_state_dict(counted)

        return undo

    # Training

    def run(self) -> TrainOutput:
        """Trains to the end of the plan, or until a callback or a signal stops it."""
        with self.signals:
            result = self.train()
            self.preemption.end_if_asked(self.plan.max_steps)
        return result

    def train(self) -> TrainOutput:
        """Trains epoch by epoch and update by update, with logs, evaluations and saves."""
        self.announce()
        train_on = self.accumulate if self.splitter is None else self.splitter.accumulate
        self.start_time = time.time()
        self.gradients.clear()
        self.events.fire("on_train_begin")
        for text in self.overrides.texts():
            self.events.note("off", text)
        if self.args.eval_on_start and self.resume_from is None:
            self.preemption.evaluate_at_start(self.hooks.evaluate_at_start)
        self.do_what_is_due()
        first_epoch, first_batch = self.here
        if not self.epoch_has_ended and first_batch == 0:
            self.end_epoch()  # the checkpoint was made at the last step of an epoch, before its end
        for epoch in range(first_epoch, self.plan.epochs):
            self.events.fire("on_epoch_begin")
            self.epoch_has_ended = False
            for batches, num_items in self.updates(epoch, first_batch if epoch == first_epoch else 0):
                self.events.fire("on_step_begin")
                train_on(batches, num_items)
                self.update_weights()
                self.end_step(batches)
                self.log_evaluate_save()
                if self.control.should_epoch_stop or self.control.should_training_stop:
                    break
            self.end_epoch()
            if self.control.should_training_stop or self.state.global_step >= self.plan.max_steps:
                break
        return self.finish()

    def announce(self) -> None:
        announce(
            self.args,
            self.model,
            self.loader,
            self.plan,
            self.state,
            self.overrides,
            batch_size=self.batch_size,
            update_size=self.update_size,
            num_examples=self.num_examples,
        )

    def end_step(self, batches: list[Any]) -> None:
        if self.splitter is None:
            self.events.fire("on_step_end")
        else:
            self.splitter.end_step(batches)

    def end_epoch(self) -> None:
        self.resumed_rng.restore()
        self.epoch_has_ended = True
        self.events.fire("on_epoch_end")
        self.log_evaluate_save()

    def do_what_is_due(self) -> None:
        """Evaluates and saves in a resumed run if a signal prevented it in the previous run."""
        if not self.preemption.ask_for_what_is_due():
            return
        with self.resumed_rng.lent():  # an evaluation draws, too
            self.log_evaluate_save()

    def updates(self, epoch: int, done: int = 0) -> Iterator[tuple[list[Any], Any]]:
        """Yields the batches of the epoch after the first `done`, an update's at a time, with their items."""
        if self.args.ignore_data_skip:
            done = 0
        if not done:
            self.resumed_rng.restore()  # before the epoch draws its own random numbers
        self.history.begin(epoch, self.state.global_step, done)
        self.begin_update(done)
        is_first = True
        batches = self.data_rng.begin(epoch, skip=done, go_on=self.resumed_rng.restore)
        while self.state.global_step < self.plan.max_steps:
            stops = self.signals.signum is not None or self.stop_on_nan is not None
            self.data_rng.watch(self.may_save() or stops)
            if not is_first:
                self.begin_update(done)
            number = self.plan.batches_in_update(done)
            try:
                group, num_items = self.hooks.get_batch_samples(batches, number, self.args.device)
            except RuntimeError:
                if self.signals.signum is None:
                    raise
                self.save_without_batch(done)  # the signal has ended a worker
            self.resumed_rng.restore()  # of a checkpoint that transformers wrote, as late as transformers does
            if not group:
                break
            done, is_first = done + len(group), False
            self.here = epoch, done
            yield group, num_items
        if not done and self.state.global_step < self.plan.max_steps:
            logger.warning("The training dataset gave no batch in epoch %d: training stops here.", epoch)
            self.control.should_training_stop = True

    def begin_update(self, done: int) -> None:
        self.update_begins_at = done
        if self.stop_on_nan is not None:
            self.stop_on_nan.begin_update()

    def save_without_batch(self, done: int) -> NoReturn:
        """Saves and ends the run if the next batch cannot be loaded, after `done` batches of an epoch."""
        if not done:  # back to the end of the epoch before it
            self.epoch_has_ended = True
            self.data_rng.unbegin()
        self.preemption.save_and_end(self.plan.max_steps)

    def padding_among_last(self, count: int) -> set[int]:
        """Returns the indices of padding batches, which have no loss in this process, among the last `count`."""
        return self.padding_after(self.here[1] - count, count)

    def padding_after(self, begin: int, count: int) -> set[int]:
        """Returns the indices of padding batches among `count` batches of the epoch after the first `begin`."""
        share = shares_of(self.loader)
        return set() if share is None else {n - begin for n in share.padding_batches if begin <= n < begin + count}

    def may_save(self) -> bool:
        """Returns True if a checkpoint may be due after the next step."""
        step, strategy = self.state.global_step + 1, self.args.save_strategy
        if strategy not in ("steps", "best"):
            return False
        every = self.state.save_steps if strategy == "steps" else self.state.eval_steps
        return step >= self.plan.max_steps or bool(every and step % every == 0)

    def accumulate(
        self, batches: list[Any], num_items: Any, divisors: Sequence[SupportsFloat | None] | None = None
    ) -> None:
        """Runs forward and backward for the batches of one update; their loss is the mean over all their items.

        Args:
            divisors: for the loss of each; None for one without a loss. Default: by their items.
        """
        hooks, last = self.hooks, len(batches) - 1
        gradient_state = self.accelerator.gradient_state
        divisors = hooks.divisors(batches) if divisors is None else divisors
        for i, (batch, divisor) in enumerate(zip(batches, divisors, strict=True)):
            gradient_state.sync_gradients = i == last
            with no_sync(self.model, i < last):
                if divisor is not None:
                    named = functools.partial(self.history.name_row, self.state.global_step, batches, i)
                    with self.batch_check.watching(batch, named):
                        loss = hooks.training_step(self.model, batch, num_items, divisor, len(batches))
                    self.meter.add(loss if self.owns_losses else loss.clone(), self.state.global_step)
                elif self.processes.is_distributed and (i == last or self.args.fsdp):
                    hooks.take_part(self.model, batch, num_items)
            hooks.count_batch(batch)
            if i < last and (i + 1) % self.parts == 0:
                self.events.fire("on_substep_end")

    def update_weights(self) -> None:
        """Clips, steps the optimizer, then its schedule, and clears the gradients."""
        hooks, step = self.hooks, self.state.global_step
        self.signals.ask(self.data_rng.may_stop)
        clipped = hooks.clip_grad_norm(self.model) if self.args.max_grad_norm else None
        self.grad_norm = hooks.get_grad_norm(self.model, clipped)
        if self.stop_on_nan is not None:
            self.grad_norm = self.stop_on_nan.check(self.grad_norm, step)
        self.events.fire("on_pre_optimizer_step")
        stepped = self.precision.step(self.optimizer())
        self.events.fire("on_optimizer_step")
        self.learning_rate = hooks.get_learning_rate()
        if self.stop_on_nan is None:
            self.meter.add_norm(self.grad_norm, step, self.learning_rate)
        if stepped and not follows_metric(lr_scheduler := self.lr_scheduler()):
            lr_scheduler.step()
        self.gradients.clear()
        self.state.global_step = step + 1
        self.state.epoch = self.plan.progress(*self.here)

    def log_evaluate_save(self) -> None:
        """Logs, evaluates and saves as the callbacks requested after a step or an epoch."""
        self.checkpointing.poll()
        self.signals.agree(self.data_rng.may_stop)
        if self.preemption.should_end:  # if not, they may after the step to come
            self.preemption.save_and_end(self.plan.max_steps)
        control = self.control
        asked = control.should_log or control.should_evaluate or control.should_save
        if not asked and not self.waits_at_each_step:
            return
        try:
            self.hooks.log_evaluate_save(
                self.meter.sum if self.waits_at_each_step else None,  # for which the host has to wait
                self.grad_norm,
                self.state.epoch,
                self.start_time,
                self.learning_rate,
            )
        except EvaluationLeftError:
            self.preemption.save_and_end(self.plan.max_steps)
        if self.waits_at_each_step:
            self.nonfinite.warn()
        if self.preemption.should_end:
            self.preemption.save_and_end(self.plan.max_steps)

    def log(self, grad_norm: Any, rate: float | None) -> None:
        """Logs the mean loss since the last log, with the step's gradient norm and learning rate."""
        loss, norm = self.meter.read(self.state.global_step, grad_norm)
        self.nonfinite.warn()
        self.hooks.store_flos()
        rate = self.hooks.get_learning_rate() if rate is None else rate
        logs = {"loss": loss, "grad_norm": norm, "learning_rate": rate}
        self.hooks.log({name: value for name, value in logs.items() if value is not None}, self.start_time)
        if self.memory_guard is not None:
            self.memory_guard.maybe_release()

    def _log_before_stop(self) -> None:
        if self.state.global_step > self.meter.last_read_step:
            with contextlib.suppress(BrokenPipeError):  # Ctrl-C has ended the `tee` that a callback writes to
                self.log(self.grad_norm, self.learning_rate)

    def finish(self) -> TrainOutput:
        """Finishes the run and returns its metrics."""
        if self.signals.signum is not None:  # in the last step, and loading draws: no step more came
            self.preemption.save_and_end(self.plan.max_steps)
        self.checkpointing.save_again()
        self.processes.wait()  # for what the first one has written
        return self.hooks.finalize_training(self.num_train_samples, self.start_time)

    def metrics(self, num_train_samples: float, start_time: float) -> dict[str, float]:
        """Returns speed, operations and mean loss of the steps since the run began or resumed.

        Args:
            num_train_samples: the examples of all steps of the plan.
        """
        steps = self.state.global_step - self.first_step
        samples = round(num_train_samples * steps / max(self.plan.max_steps, 1))
        metrics = speed_metrics("train", start_time, num_samples=samples, num_steps=steps)
        self.hooks.store_flos()
        metrics["total_flos"] = self.state.total_flos
        metrics["train_loss"] = self.meter.mean(self.state.global_step)
        self.nonfinite.warn()
        return metrics
