"""The training loop: epochs of updates, updates of batches."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from transformers.trainer_utils import TrainOutput, speed_metrics

from ..checkpoints.rng import set_rng
from ..data.buckets import buckets_of
from ..data.loader import length_of
from ..data.shares import shares_of
from ..guards.signals import StopRequest
from . import checkpoint, nonfinite
from .after_step import AfterStep
from .announce import announce
from .draws import LoadingDraws
from .fitting import FittingBatches
from .gradients import Gradients
from .meter import LossMeter
from .objective import Objective
from .optimizer import follows_metric, set_mode
from .plan import StepPlan
from .replicas import apart
from .stopping import EvaluationLeftError, Stopping
from .trail import Trail

if TYPE_CHECKING:
    from .trainer import Trainer

logger = logging.getLogger(__name__)


class TrainingLoop:
    """One run of training. Holds what a run needs and a Trainer at rest does not: plan, meter, position.

    Nothing between two logs reads a value from the device: its queue is not drained for a number that nobody looks at.
    """

    def __init__(self, trainer: Trainer, resume_from: str | None, trial: Any = None) -> None:
        self.trainer = trainer
        self.args = trainer.args
        self.resume_from = resume_from
        self.trial = trial  # of a search for hyper-parameters
        trainer.loop = self
        self.loader = trainer.callback_handler.train_dataloader = trainer.get_train_dataloader()
        buckets = buckets_of(self.loader)
        self.parts = 1 if buckets is None else buckets.parts  # that a batch of the arguments' size comes in
        self.plan = StepPlan.make(
            length_of(self.loader),
            self.args.gradient_accumulation_steps * self.parts,
            self.args.max_steps,
            self.args.num_train_epochs,
        )
        scaled = trainer.precision.scaler is not None
        self.meter = LossMeter(self.args.device, self.args.logging_nan_inf_filter, scaled, trainer.processes)
        self.trail = Trail(self.loader, self.plan, type(trainer).get_batch_samples is Objective.get_batch_samples)
        self.model = trainer.model_wrapped = trainer._wrap_model(trainer.model)
        trainer.create_optimizer_and_scheduler(self.plan.max_steps)
        set_mode(trainer.optimizer, training=True)
        trainer.accelerator.prepare(self.model, trainer.optimizer)
        self.gradients = Gradients(trainer, self.model)
        self.owns_losses = type(trainer).training_step is Objective.training_step
        self.follows_metric = follows_metric(trainer.lr_scheduler)
        trainer.begin_state(self.plan.max_steps, self.plan.epochs, resume_from, trial)
        self.rng: dict[str, Any] | None = None  # to go on with, once
        self.rng_is_as_saved = True
        self.draws = LoadingDraws(self.loader)
        self.state = trainer.state
        self.update_begins_at = 0  # batches of the epoch before those of the update under way
        self.fitting: FittingBatches | None = None
        self.go_on_at(self.state.global_step, {})
        if resume_from is not None:
            self.rng = checkpoint.restore_progress(self, resume_from)
            self.draws.resume(self.rng)
        self.stop = StopRequest(self.args.save_on_signal, trainer.processes)
        if self.args.auto_find_batch_size:
            self.fitting = FittingBatches(self, trainer.examples_at_a_time)
        self.grad_norm: torch.Tensor | float | None = None
        self.rate: float | None = None
        self.stop_on_nan = nonfinite.StopOnNan(self) if self.args.stop_on_nan else None

    def position(self) -> dict[str, Any]:
        """Where the run stands, as far as the step does not tell."""
        epoch, batches = self.here
        return {
            **self.meter.state(),
            "epoch_has_ended": self.epoch_has_ended,
            "epoch": epoch,
            "batches": batches,
            "due": self.stopping.due,
            **({} if self.fitting is None else {checkpoint.AT_A_TIME: self.fitting.most}),
        }

    def go_on_at(self, step: int, position: dict[str, Any]) -> None:
        """Makes the run one that goes on after `step`; a checkpoint of transformers has no `position`."""
        self.first_step = step
        self.here = self.plan.epoch_of(step), self.plan.batches_done(step)
        if self.plan.batches_per_epoch is None and "epoch" in position:  # the plan cannot know
            self.here = position["epoch"], position["batches"]
            if position["epoch_has_ended"]:
                self.here = position["epoch"] + 1, 0
        self.epoch_has_ended = position.get("epoch_has_ended", True)
        self.stopping = Stopping(self, position.get("due", []))
        self.meter.begin_at(step)
        if position:
            self.meter.load_state(position)

    def run(self) -> TrainOutput:
        """Trains to the end of the plan, or until a callback or a signal stops it."""
        with self.stop:
            result = self.train()
            self.stopping.end_if_asked()
        return result

    def train(self) -> TrainOutput:
        """Epochs, updates, and what comes between them."""
        announce(self)
        train_on = self.accumulate if self.fitting is None else self.fitting.accumulate
        self.start_time = time.time()
        self.trainer.begin_tokens()
        self.gradients.clear()
        self.trainer.fire("on_train_begin")
        if self.args.eval_on_start and self.resume_from is None:
            self.stopping.evaluate_at_start()
        self.stopping.do_what_is_due()
        first_epoch, first_batch = self.here
        if not self.epoch_has_ended and first_batch == 0:
            self.end_epoch()  # the checkpoint was made at the last step of an epoch, before its end
        for epoch in range(first_epoch, self.plan.epochs):
            self.trainer.fire("on_epoch_begin")
            self.epoch_has_ended = False
            for batches, num_items in self.updates(epoch, first_batch if epoch == first_epoch else 0):
                self.trainer.fire("on_step_begin")
                train_on(batches, num_items)
                self.update_weights()
                self.trainer.fire("on_step_end")
                self.log_evaluate_save()
                if self.trainer.control.should_epoch_stop or self.trainer.control.should_training_stop:
                    break
            self.end_epoch()
            if self.trainer.control.should_training_stop or self.state.global_step >= self.plan.max_steps:
                break
        return self.finish()

    def end_epoch(self) -> None:
        self.restore_rng()
        self.epoch_has_ended = True
        self.trainer.fire("on_epoch_end")
        self.log_evaluate_save()

    def restore_rng(self) -> None:
        """Once in a resumed run: the generators go on from where the checkpoint was made."""
        if self.rng is not None and self.rng_is_as_saved:
            self.trainer._load_rng_state(self.resume_from)
        elif self.rng is not None:
            set_rng(self.rng)
        self.rng = None

    def updates(self, epoch: int, done: int = 0) -> Iterator[tuple[list[Any], Any]]:
        """The batches of the epoch after the first `done`, in the groups that make an update; their items."""
        if self.args.ignore_data_skip:
            done = 0
        if not done:
            self.restore_rng()  # before the epoch draws its own random numbers
        self.trail.begin(epoch, self.state.global_step, done)
        begun_at = done
        if self.stop_on_nan is not None:
            self.stop_on_nan.begin_update(done)
        batches = self.draws.begin(epoch, skip=done, go_on=self.restore_rng)
        while self.state.global_step < self.plan.max_steps:
            self.draws.watch(self.may_save() or self.stop.signum is not None or self.stop_on_nan is not None)
            if self.stop_on_nan is not None and done > begun_at:
                self.stop_on_nan.begin_update(done)
            number = self.plan.batches_in_update(done)
            self.update_begins_at = done
            try:
                group, num_items = self.trainer.get_batch_samples(batches, number, self.args.device)
            except RuntimeError:
                if self.stop.signum is None:
                    raise
                self.stopping.save_without_batch(done)  # the signal has ended a worker
            self.restore_rng()  # of a checkpoint that transformers wrote, as late as transformers does
            if not group:
                break
            done += len(group)
            self.here = epoch, done
            yield group, num_items
        if not done and self.state.global_step < self.plan.max_steps:
            logger.warning("The training dataset gave no batch in epoch %d: training stops here.", epoch)
            self.trainer.control.should_training_stop = True

    def fillers_among(self, count: int) -> set[int]:
        """Which of the last `count` batches are another process's, and do not count in this one."""
        return self.fillers_from(self.here[1] - count, count)

    def fillers_from(self, begin: int, count: int) -> set[int]:
        """Which of `count` batches of the epoch, after the first `begin`, are so."""
        share = shares_of(self.loader)
        return set() if share is None else {n - begin for n in share.fillers if begin <= n < begin + count}

    def may_save(self) -> bool:
        """Whether a checkpoint may be due after the step to come."""
        step, strategy = self.state.global_step + 1, self.args.save_strategy
        if strategy not in ("steps", "best"):
            return False
        every = self.state.save_steps if strategy == "steps" else self.state.eval_steps
        return step >= self.plan.max_steps or bool(every and step % every == 0)

    def accumulate(self, batches: list[Any], num_items: Any, divisors: list[float | None] | None = None) -> None:
        """Forward and backward for the batches of one update; their loss is the mean over all their items.

        Args:
            divisors: what the loss of each is divided by; None for one without a loss. Default: by their items.
        """
        trainer = self.trainer
        trainer.current_gradient_accumulation_steps = len(batches)
        last = len(batches) - 1
        divisors = trainer.shares(batches) if divisors is None else divisors
        for i, (batch, divisor) in enumerate(zip(batches, divisors, strict=True)):
            trainer.accelerator.gradient_state.sync_gradients = i == last
            with apart(self.model, i < last):
                if divisor is not None:
                    trainer.loss_divisor = divisor
                    loss = trainer.training_step(self.model, batch, num_items)
                    # one that a subclass returns may be changed by it before it is read
                    self.meter.add(loss if self.owns_losses else loss.clone(), self.state.global_step)
                elif trainer.processes.are_several and (i == last or trainer.is_fsdp_enabled):
                    trainer.take_part(self.model, batch, num_items)
            trainer.count_batch(batch)
            if i < last and (i + 1) % self.parts == 0:
                trainer.fire("on_substep_end")

    def update_weights(self) -> None:
        """Clips, steps the optimizer, then its schedule, and clears the gradients."""
        trainer = self.trainer
        self.stop.ask(self.draws.may_stop)
        clipped = trainer._clip_grad_norm(self.model) if self.args.max_grad_norm else None
        self.grad_norm = trainer._get_grad_norm(self.model, grad_norm=clipped)
        if self.stop_on_nan is not None:
            self.grad_norm = self.stop_on_nan.check(self.grad_norm)
        trainer.fire("on_pre_optimizer_step")
        stepped = trainer.precision.step(trainer.optimizer)
        trainer.fire("on_optimizer_step")
        self.rate = trainer._get_learning_rate()
        if self.stop_on_nan is None:
            self.meter.add_norm(self.grad_norm, self.state.global_step, self.rate)
        if stepped and not self.follows_metric:
            trainer.lr_scheduler.step()
        self.gradients.clear()
        self.state.global_step += 1
        self.state.epoch = self.plan.progress(*self.here)

    def log_evaluate_save(self) -> None:
        """Does what the callbacks asked for after a step or an epoch."""
        self.trainer.background.poll()
        self.stop.agree(self.draws.may_stop)
        if self.stop.signum is not None and self.stop.all_may_stop:  # if not, they may after the step to come
            self.stopping.save_and_end()
        control = self.trainer.control
        is_own = type(self.trainer)._maybe_log_save_evaluate is AfterStep._maybe_log_save_evaluate
        if is_own and not (control.should_log or control.should_evaluate or control.should_save):
            return
        try:
            self.trainer._maybe_log_save_evaluate(
                None if is_own else self.meter.sum,  # for which the host would have to wait
                self.grad_norm,
                self.model,
                self.trial,
                self.state.epoch,
                self.trainer.ignore_keys_for_eval,
                self.start_time,
                learning_rate=self.rate,
            )
        except EvaluationLeftError:
            self.stopping.save_and_end()
        if not is_own:
            nonfinite.tell(self)
        if self.stop.signum is not None and self.stop.all_may_stop:
            self.stopping.save_and_end()

    def log(self, grad_norm: Any, rate: float | None) -> None:
        """Logs the mean loss since the last log, with the step's gradient norm and learning rate."""
        trainer = self.trainer
        loss, norm = self.meter.read(self.state.global_step, grad_norm)
        nonfinite.tell(self)
        trainer.store_flos()
        rate = trainer._get_learning_rate() if rate is None else rate
        logs = {"loss": loss, "grad_norm": norm, "learning_rate": rate}
        trainer.log({name: value for name, value in logs.items() if value is not None}, self.start_time)
        if trainer.memory_guard is not None:
            trainer.memory_guard.look()

    def finish(self) -> TrainOutput:
        """The metrics of the run; the best weights if they were asked for; the end for the callbacks."""
        trainer, steps = self.trainer, self.state.global_step - self.first_step
        if self.stop.signum is not None:  # in the last step, and loading draws: no step more came
            self.stopping.save_and_end()
        trainer.save_again(self.trial)
        trainer.processes.wait()  # for what the first one has written
        share = steps / max(self.plan.max_steps, 1)
        metrics = speed_metrics(
            "train", self.start_time, num_samples=round(self.samples_in_plan() * share), num_steps=steps
        )
        trainer.store_flos()
        metrics["total_flos"] = self.state.total_flos
        metrics["train_loss"] = self.meter.mean(self.state.global_step)
        nonfinite.tell(self)
        trainer._finalize_training(metrics)
        if self.args.load_best_model_at_end:
            trainer._load_best_model()
        trainer.keep_only_the_best()
        trainer.fire("on_train_end")
        trainer._finish_current_push()
        trainer.require_saved()
        return TrainOutput(self.state.global_step, metrics["train_loss"], metrics)

    def samples_in_plan(self) -> float:
        batch_size = self.trainer._train_batch_size * self.trainer.processes.size
        if self.args.max_steps > 0 or self.plan.batches_per_epoch is None:
            return self.plan.max_steps * batch_size * self.args.gradient_accumulation_steps
        return self.trainer.num_examples(self.loader) * self.args.num_train_epochs
