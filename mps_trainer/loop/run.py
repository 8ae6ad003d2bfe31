"""Runs the training loop: epochs, updates and batches."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, SupportsFloat

import torch
from transformers.trainer_utils import TrainOutput, speed_metrics

from ..callbacks.overview import announce
from ..checkpoints.loading import read_position
from ..checkpoints.rng import read_rng
from ..checkpoints.saver import CheckpointSaver
from ..checkpoints.writers import check_extra_states
from ..data.batch_checks import BatchCheck
from ..data.buckets import buckets_of
from ..data.epoch_loader import read_alike
from ..data.missing_columns import explain_missing_columns
from ..data.order import distributed_sampler
from ..data.plan import StepPlan
from ..distributed import sharded
from ..distributed.ddp import inside, is_current, no_sync
from ..guards.memory import CacheGuard
from ..guards.signals import SignalHandler
from ..model.introspection import base_model, check_trainable
from ..model.padding_free import PaddingPlan
from ..optim.adamw import AdamW
from ..optim.factory import follows_metric, set_mode
from ..overrides import BACKGROUND_SAVES, CLIPPING_IN_STEP
from ..reports.recorder import begin_report
from ..search import set_state
from .batch_halving import MicrobatchSplitter, initial_batch_sizes
from .batch_history import BatchHistory
from .batch_source import BatchSource
from .clipping import Gradients
from .drift import DriftWatch
from .initial_state import init_state
from .items import ItemCounter
from .loss_divisors import BatchWeight, UpdateLoss
from .meter import LossMeter
from .nonfinite import NonFiniteReporter, StopOnNan
from .override_adapters import OverriddenTokenCount, TokenCount, batch_runner_for
from .padding_free import PaddingFree
from .position import Position, Update
from .preemption import EvaluationLeftError, PreemptionHandler
from .rollback import Rollback
from .surface import TrainerSurface

logger = logging.getLogger(__name__)


class TrainingRun:
    """Runs one call of `train()`. Sets `trainer._mt_run` to itself until it ends.

    The run reads no value from the device between two logs: a read would wait for all work that is queued there.

    Args:
        trial: the trial of a search for hyper-parameters, or None.
        resume_from: the checkpoint folder to resume, or None.
        padding: how the run leaves out padding. Default: it does not.

    Attributes:
        model: the model as it is called: compiled, or one of several replicas, if the arguments say so.
        num_examples: the examples in the training dataset, if its length is known.
        num_train_samples: the examples of all steps of the plan.
        update_size: examples in an optimizer step of all processes.
    """

    def __init__(
        self,
        trainer: TrainerSurface,
        trial: Any = None,
        resume_from: str | None = None,
        padding: PaddingPlan | None = None,
    ) -> None:
        self.trainer, self.trial, self.args, self.events = trainer, trial, trainer.args, trainer._mt_events
        self.resume_from, args, processes = resume_from, trainer.args, trainer._mt_processes
        supervised = trainer._mt_supervised
        limit = None if supervised is None or args.fsdp else supervised.examples  # memory ran out before a restart
        splits_batches = args.auto_find_batch_size or limit is not None
        self.batch_size, examples_at_a_time = initial_batch_sizes(args, resume_from, limit)
        # each needs the one before: the optimizer's schedule the plan, the state the steps, the rest all of them
        self._make_loader_and_plan()
        self._prepare_model_and_optimizer()
        padding_plan = PaddingPlan(reason="the model is not patched") if padding is None else padding
        self._create_state(examples_at_a_time, splits_batches, padding_plan.applies)
        self._adapt_to_overrides()

        unwrapped = inside(self.model)  # `accumulate` may replace the replica, whose buckets hold all gradients
        self.modules = list(unwrapped.modules())  # listing them takes 3 ms for a BERT, too long for each step
        self.saver = CheckpointSaver(trainer)
        counter = ItemCounter.of(trainer.model, trainer.label_names)
        averages = args.average_tokens_across_devices
        self.loss = UpdateLoss(counter, processes, averages, distributed_sampler(self.loader))
        self.weight_of_current_batch = BatchWeight()
        self.batch_check = BatchCheck(base_model(self.model))
        fills = args.device.type == "mps"  # where each new shape has to be prepared
        self.padding = PaddingFree(padding_plan, trainer.model, trainer._mt_transfer, self.events, fills)
        self.batch_source = BatchSource(self.loader, takes_order_seed=args.data_seed is None)
        scaled = trainer._mt_precision.scaler is not None
        self.meter = LossMeter(args.device, args.logging_nan_inf_filter, scaled, processes)
        self.position = Position(
            self.plan,
            trainer.state,
            self.meter,
            self.batch_source,
            ignores_data=args.ignore_data_skip,
            is_epoch_cut=lambda: trainer.control.should_epoch_stop,
            splits_batches=splits_batches,
            examples_at_a_time=examples_at_a_time,
        )
        self.rollback = Rollback(trainer, unwrapped, self.position)
        clips_in_step = not self.overrides.clip_or_measure_gradients
        self.gradients = Gradients(unwrapped, self.events, trainer._mt_precision, clips_in_step)
        self.signals = SignalHandler(args.save_on_signal, processes)
        self.preemption = PreemptionHandler(trainer, self.signals, self.position, self.rollback)
        self.history = BatchHistory(self.loader, is_plain=not self.overrides.get_batch_samples)
        self.nonfinite = NonFiniteReporter(self.meter.watch, self.history, self.events, args.mixed_precision)
        guards_cache = args.memory_guard and args.device.type == "mps"
        self.cache_guard = CacheGuard(args.device) if guards_cache else None
        self.drift = DriftWatch(self.events) if trainer.is_local_process_zero() else None
        self.splitter = self._make_splitter() if splits_batches else None
        self.stop_on_nan = None
        if args.stop_on_nan:
            self.stop_on_nan = StopOnNan(trainer, self.rollback, self.gradients, self.nonfinite)
        trainer._mt_run = self
        self.tokens_at_start = trainer.state.num_input_tokens_seen

    # The start

    def _make_loader_and_plan(self) -> None:
        """Makes the loader, whose length decides on epochs and steps."""
        trainer = self.trainer
        trainer._train_batch_size = self.batch_size
        self.loader = trainer.callback_handler.train_dataloader = trainer.get_train_dataloader()
        read_alike(self.loader, trainer._mt_processes)
        values = trainer.set_initial_training_values(self.args, self.loader)
        epochs, _, self.num_examples, self.num_train_samples, self.update_size, _, max_steps = values
        self.plan = dataclasses.replace(StepPlan.of(self.loader, self.args), epochs=epochs, max_steps=max_steps)
        buckets = buckets_of(self.loader)
        self.batches_in_one = 1 if buckets is None else buckets.chunks  # buckets cut a batch into several

    def _prepare_model_and_optimizer(self) -> None:
        """Wraps the model, and makes optimizer and schedule where the Trainer has none."""
        trainer = self.trainer
        if trainer.optimizer is None and not trainer._mt_overrides.may_train_other_parameters:
            check_trainable(trainer.model)
        self.model = trainer.model_wrapped = trainer._wrap_model(trainer.model)
        trainer.create_optimizer_and_scheduler(self.plan.max_steps)
        trainer._mt_precision.check_weights(self.model, trainer.optimizer)
        set_mode(trainer.optimizer, training=True)
        trainer._mt_precision.prepare(self.model)
        handler = trainer.callback_handler
        handler.model, handler.optimizer, handler.lr_scheduler = trainer.model, trainer.optimizer, trainer.lr_scheduler

    def _create_state(self, examples_at_a_time: int | None, splits_batches: bool, leaves_out_padding: bool) -> None:
        """Creates `trainer.state`, or restores it from the checkpoint, and finds the checkpoints of other runs."""
        trainer = self.trainer
        init_state(
            trainer,
            self.resume_from,
            self.plan.max_steps,
            num_train_epochs=self.plan.epochs,
            train_batch_size=examples_at_a_time or self.batch_size,
            is_local_process_zero=trainer.is_local_process_zero(),
            is_world_process_zero=trainer.is_world_process_zero(),
            update_size=self.update_size,
            leaves_out_padding=leaves_out_padding,
            splits_batches=splits_batches,
        )
        if trainer.hp_search_backend is not None and trainer._trial is not None:
            set_state(trainer.state, trainer._trial, trainer.hp_name)
        trainer._mt_checkpoints.find_stale(self.resume_from, trainer.state.global_step)

    def _adapt_to_overrides(self) -> None:
        """Chooses what the run does around overridden methods, and records which fast paths they disable in it."""
        trainer, args, overrides = self.trainer, self.args, self.trainer._mt_overrides
        if args.save_strategy != "no" and not overrides.write_checkpoints:
            check_extra_states(inside(self.model))
        if args.save_strategy == "no" or not args.save_async:
            overrides = overrides.without(BACKGROUND_SAVES)
        if not isinstance(trainer.optimizer, AdamW):
            overrides = overrides.without(CLIPPING_IN_STEP)
        self.overrides = trainer._mt_overrides = overrides
        self.run_batch = batch_runner_for(overrides, trainer._mt_transfer)
        self.move_loaded = trainer._mt_transfer.before_other_code(overrides.get_batch_samples)
        self.tokens = OverriddenTokenCount(trainer) if overrides.track_num_input_tokens else TokenCount(trainer)
        # TRL's compute_loss exchanges numbers in each pass, and so do the blocks of a sharded model
        self.shares_each_pass = overrides.compute_loss or bool(args.fsdp)
        self.waits_at_each_step = overrides.maybe_log_save_evaluate

    def _make_splitter(self) -> MicrobatchSplitter:
        # an override of split_batch knows its batches, and a dataset that yields batches itself has no sampler
        sampler = None if self.overrides.split_batch else getattr(self.loader, "batch_sampler", None)
        return MicrobatchSplitter(
            self.trainer,
            self.position,
            self.rollback,
            self.gradients,
            self.history,
            self.batch_size,
            max_rows=getattr(sampler, "batch_size", None),
            loss=self.loss,
            move_loaded=self.move_loaded,
        )

    def resume(self) -> None:
        """Loads weights, optimizer, schedule, gradient scaler and position from the checkpoint, if there is one.

        `init_state` has restored `trainer.state` before that, because it has the step.

        Raises:
            MisconfigurationException: if the checkpoint is damaged, or not one of this model and optimizer.
        """
        trainer, processes, folder = self.trainer, self.trainer._mt_processes, self.resume_from
        if folder is None:
            return
        trainer._load_from_checkpoint(folder)
        trainer._load_optimizer_and_scheduler(folder)
        trainer._load_scaler(folder)
        saved = {
            "loop": read_position(folder, processes.rank, processes.size),
            "rng": read_rng(folder, processes.rank, processes.size),
        }
        load_rng = functools.partial(trainer._load_rng_state, folder) if self.overrides.load_rng_state else None
        self.position.load_state_dict(saved, load_rng)

    # Training

    def updates(self) -> Iterator[Update]:
        """Yields the updates that are left, and fires the events of epochs and the begin of each step.

        A callback may end an epoch or the run after a step; the next update then belongs to the next epoch.
        """
        if not self.start() or self.is_complete():
            return
        for _ in self.position.epochs():
            with self.position.beginning_epoch():
                self.events.fire("on_epoch_begin")
            for update in self.updates_of_epoch():
                self.events.fire("on_step_begin")
                yield update
                if self.trainer.control.should_epoch_stop or self.trainer.control.should_training_stop:
                    break
            self.end_epoch()
            if self.trainer.control.should_training_stop or self.trainer.state.global_step >= self.plan.max_steps:
                break

    def start(self) -> bool:
        """Announces the run, and does the work that was postponed in the run that this one resumes.

        Returns:
            False if a callback ends the run in the postponed work.
        """
        announce(self)
        self.trainer._mt_processes.waiting_shares(0)
        self.start_time = time.time()
        self.note_progress()
        self.gradients.clear(self.trainer.optimizer)
        self.trainer.current_flos = 0.0  # an earlier run may have failed before it stored its own
        position, supervised = self.position, self.trainer._mt_supervised
        if supervised is not None and supervised.is_restarted and self.trainer.control.should_training_stop:
            position.postponed.append("stop")  # the run died after a callback had ended it
        with position.rng_restored_if_resumed():
            self.events.fire("on_train_begin")
        self.begin_report()
        for text in self.overrides.reasons:
            self.events.note("off", text)
        if self.args.eval_on_start and self.resume_from is None:
            self.preemption.evaluate_at_start(self.trial)
        must_stop = self.do_postponed_work()
        return not must_stop

    def do_postponed_work(self) -> bool:
        """Evaluates, saves and ends the epoch as the run that this one resumes would have done after its last step.

        Returns:
            True if the run ends with that, because a callback requested it now or before.
        """
        trainer, position = self.trainer, self.position  # a callback may replace `trainer.control`
        if was_postponed := self.preemption.request_postponed():
            self.evaluate_and_save_as_requested()
        # the checkpoint of the last step of an epoch is made before the epoch's end
        epoch_end_is_due = not position.epoch_has_ended and position.batches == 0
        must_end_epoch = was_postponed and trainer.control.should_training_stop and not position.epoch_has_ended
        if epoch_end_is_due or must_end_epoch:
            self.end_epoch()
        return (epoch_end_is_due or was_postponed) and trainer.control.should_training_stop

    def is_complete(self) -> bool:
        """Returns True if the run resumes a checkpoint of its end."""
        return self.position.epoch_has_ended and self.trainer.state.global_step >= self.plan.max_steps

    def begin_report(self) -> None:
        trainer, supervised = self.trainer, self.trainer._mt_supervised
        report = begin_report(
            trainer._mt_checkpoints.run_dir,
            self.args,
            trainer.state,
            trainer.model,
            loader=self.loader,
            update_size=self.update_size,
            resume_from=self.resume_from,
            restarts=() if supervised is None else supervised.restarts,
        )
        self.events.report_to(report)

    def end_epoch(self) -> None:
        self.position.epoch_has_ended = True
        self.events.fire("on_epoch_end")
        self.evaluate_and_save_as_requested()

    def updates_of_epoch(self) -> Iterator[Update]:
        """Yields the updates that are left in the epoch, with their batches loaded."""
        position, batches = self.position, None
        while position.has_updates_left():
            if self.stop_on_nan is not None:
                self.stop_on_nan.take_snapshot()
            accumulation = self.args.gradient_accumulation_steps * self.batches_in_one  # a callback may change it
            count = self.plan.batches_in_update(position.batches, accumulation)
            stops = self.signals.signum is not None or self.stop_on_nan is not None
            try:
                if batches is None:
                    batches = map(self.move_loaded, position.begin_pass(count))
                self.batch_source.record_before_batches(self.may_save() or stops)
                with self.loss.loading_update(position.batches):
                    group, num_items = self.trainer.get_batch_samples(batches, count, self.args.device)
            except RuntimeError:
                if self.signals.signum is None:
                    raise
                self.save_without_batch()  # the signal has ended a worker
            if (update := position.advance(group, num_items)) is None:
                break
            self.history.record(self.trainer.state.global_step, update)
            yield update
        if not position.batches and self.trainer.state.global_step < self.plan.max_steps:
            logger.warning("The training dataset gave no batch in epoch %d: training stops here.", position.epoch)
            self.trainer.control.should_training_stop = True

    def save_without_batch(self) -> NoReturn:
        """Saves and ends the run if the next batch cannot be loaded."""
        if not self.position.batches:
            self.position.withdraw_epoch()
        self.preemption.save_and_end(self.log)

    def may_save(self) -> bool:
        """Returns True if a checkpoint may be due after the next step."""
        step, strategy = self.trainer.state.global_step + 1, self.args.save_strategy
        if strategy not in ("steps", "best"):
            return False
        every = self.trainer.state.save_steps if strategy == "steps" else self.trainer.state.eval_steps
        return step >= self.plan.max_steps or bool(every and step % every == 0)

    def accumulate(self, update: Update) -> None:
        """Runs forward and backward for an update, with fewer examples at a time if batches do not fit into memory."""
        if self.splitter is None:
            self.accumulate_batches(update.batches, update.num_items)
        else:
            self.splitter.accumulate(self.accumulate_batches, update)

    def accumulate_batches(
        self,
        batches: list[Any],
        num_items: Any,
        divisors: Sequence[SupportsFloat | None] | None = None,
        count: int | None = None,
    ) -> None:
        """Runs forward and backward for the batches of one update; their loss is the mean over all their items.

        Args:
            num_items: the number of items in all of them.
            divisors: the divisor for the loss of each batch; None for a batch without a loss. Default: computed here.
            count: the number of batches before some of them were split. Default: none is split.
        """
        trainer, last, step = self.trainer, len(batches) - 1, self.trainer.state.global_step
        divisors = self.loss.divisors(batches) if divisors is None else divisors
        accumulated = -(-(count or len(batches)) // self.batches_in_one)
        fillers = self.loss.filler_positions(len(batches))
        if not is_current(self.model):  # a callback has frozen parameters or released some
            self.model = trainer.model_wrapped = trainer._wrap_model(trainer.model)
        trainer.current_gradient_accumulation_steps = len(batches)
        self.tokens.begin_update()
        for i, (batch, divisor) in enumerate(zip(batches, divisors, strict=True)):
            if (accelerator := vars(trainer).get("accelerator")) is not None:  # a subclass or a callback has used it
                accelerator.gradient_state._set_sync_gradients(i == last)
            with no_sync(self.model, i < last):
                if divisor is not None:
                    # for training_step, which has no parameter for it, because overrides have transformers' signature
                    self.weight_of_current_batch = BatchWeight(divisor, accumulated, len(batches) > accumulated)
                    self.forward_backward(batch, num_items, functools.partial(self.history.name_row, step, batches, i))
                elif trainer._mt_processes.is_distributed and (i == last or self.shares_each_pass):
                    self.zero_gradient_backward(batch, num_items)
            if i not in fillers:  # the process whose examples they are counts them
                trainer.current_flos += float(trainer.floating_point_ops(batch))
            self.tokens.add(batch, i in fillers)
            if i < last and (i + 1) % self.batches_in_one == 0:
                self.events.fire("on_substep_end")
        self.tokens.end_update()

    def forward_backward(self, batch: Any, num_items: Any, name_row: Callable[[int], str]) -> None:
        """Runs forward and backward for one batch, and keeps its loss on the device.

        Args:
            name_row: returns a description of a row of the batch.
        """
        try:
            with self.batch_check.watching(batch, name_row):
                loss = self.run_batch(self.trainer, self.model, self.padding.unpad(batch), num_items)
        except Exception as error:
            explain_missing_columns(error, self.loader, batch, needs_labels=True)
            raise
        self.meter.add(loss, self.trainer.state.global_step)
        if self.drift is not None:
            self.drift.add(batch)

    def note_progress(self) -> None:
        if (supervised := self.trainer._mt_supervised) is not None:
            supervised.note(self.trainer.state.global_step, self.trainer.state.train_batch_size)

    def zero_gradient_backward(self, batch: Any, num_items: Any) -> None:
        """Runs forward and backward without adding to the gradients, where the other processes wait for this one."""
        trainer, model = self.trainer, self.model
        inputs, is_sharded = trainer._prepare_inputs(batch), sharded.is_sharded(model)
        with sharded.zeroed_gradients(model) if is_sharded else contextlib.nullcontext():
            with trainer.compute_loss_context_manager():
                # an override may exchange numbers with the other processes, and so do the blocks of a sharded model
                loss = trainer.compute_loss(model, inputs, num_items_in_batch=num_items)
                if not is_sharded:
                    trained = [parameter.sum().float() for parameter in model.parameters() if parameter.requires_grad]
                    loss = torch.stack(trained) * 0.0
                loss = loss.sum()
            trainer._mt_precision.backward(loss)

    def step_optimizer(self) -> None:
        """Clips, steps the optimizer, then its schedule, and clears the gradients.

        The fused AdamW clips within its step; then `_clip_grad_norm` only measures the norm.
        """
        trainer, position, step = self.trainer, self.position, self.trainer.state.global_step
        self.signals.ask()
        clipped = trainer._clip_grad_norm(self.model) if self.args.max_grad_norm else None
        position.grad_norm = trainer._get_grad_norm(self.model, grad_norm=clipped)
        if self.stop_on_nan is not None:
            position.grad_norm = self.stop_on_nan.check(position.grad_norm, step)
        self.events.fire("on_pre_optimizer_step")
        stepped = trainer._mt_precision.step(trainer.optimizer)
        self.events.fire("on_optimizer_step")
        position.learning_rate = trainer._get_learning_rate()
        if self.stop_on_nan is None:
            self.meter.add_norm(position.grad_norm, step, position.learning_rate)
        if stepped and not follows_metric(trainer.lr_scheduler):
            trainer.lr_scheduler.step()
        self.gradients.clear(trainer.optimizer)
        trainer.state.global_step = step + 1
        self.note_progress()
        trainer.state.epoch = position.progress

    def log_evaluate_save(self) -> None:
        """Fires on_step_end, at which the callbacks say what is due, then logs, evaluates and saves."""
        if self.splitter is None:
            self.events.fire("on_step_end")
        else:
            self.splitter.end_step()  # fires it, too
        self.evaluate_and_save_as_requested()

    def evaluate_and_save_as_requested(self) -> None:
        """Logs, evaluates and saves as the callbacks requested after a step or an epoch."""
        self.saver.poll()
        self.signals.agree()
        if self.signals.signum is not None:
            self.preemption.save_and_end(self.log)
        trainer, control = self.trainer, self.trainer.control
        asked = control.should_log or control.should_evaluate or control.should_save
        if not asked and not self.waits_at_each_step:
            return
        with contextlib.suppress(EvaluationLeftError):  # a signal came, and the run ends below
            trainer._maybe_log_save_evaluate(
                self.meter.sum if self.waits_at_each_step else None,  # reading the sum waits for the device
                self.position.grad_norm,
                self.model,
                self.trial,
                trainer.state.epoch,
                trainer.ignore_keys_for_eval,
                self.start_time,
                learning_rate=self.position.learning_rate,
            )
        if self.waits_at_each_step:
            self.nonfinite.warn()
        if self.signals.signum is not None:
            self.preemption.save_and_end(self.log)
        if self.drift is not None and asked:
            self.drift.begin(trainer.state.global_step)

    def log(self, grad_norm: Any, rate: float | None) -> None:
        """Logs the mean loss since the last log, with the step's gradient norm and learning rate."""
        step = self.trainer.state.global_step
        loss, norm = self.meter.read(step, grad_norm)
        if self.drift is not None:
            self.drift.end(step)
        self.nonfinite.warn()
        self.trainer.store_flos()
        rate = self.trainer._get_learning_rate() if rate is None else rate
        logs = {"loss": loss, "grad_norm": norm, "learning_rate": rate}
        self.trainer.log({name: value for name, value in logs.items() if value is not None}, self.start_time)
        if self.cache_guard is not None:
            self.cache_guard.maybe_release()

    def finish(self) -> TrainOutput:
        """Finishes the run and returns its metrics."""
        self.saver.save_again()
        self.padding.note_share()
        processes = self.trainer._mt_processes
        processes.wait()  # the first process may still write
        if shares := processes.waiting_shares(time.time() - self.start_time):
            waited = ", ".join(f"process {rank} {share:.0%}" for rank, share in enumerate(shares))
            self.events.note("waiting", f"Time spent waiting for slower processes: {waited}.")
        output = self.trainer._finalize_training(self.trial, self.num_train_samples, self.start_time)
        self.preemption.end_if_signalled(self.log)
        if self.args.auto_find_batch_size:  # transformers also stores the size that it found there
            self.trainer._train_batch_size = self.trainer.state.train_batch_size or self.batch_size
        return output

    def metrics(self, num_train_samples: float, start_time: float) -> dict[str, float]:
        """Returns the speed since the run began or resumed, and operations and mean loss of the whole run.

        Args:
            num_train_samples: the examples of all steps of the plan.
        """
        steps = self.trainer.state.global_step - self.position.first_step
        samples = round(num_train_samples * steps / max(self.plan.max_steps, 1))
        metrics = speed_metrics("train", start_time, num_samples=samples, num_steps=steps)
        self.trainer.store_flos()
        metrics["total_flos"] = self.trainer.state.total_flos
        metrics["train_loss"] = self.meter.mean(self.trainer.state.global_step)
        self.nonfinite.warn()
        return metrics
