"""`Trainer`: the public face. It holds the parts of a run; each part's work is in a module of its own."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers.training_args  # noqa: F401 - the enums that the arguments take their members from
from torch import nn
from transformers.trainer_callback import CallbackHandler, TrainerCallback
from transformers.trainer_pt_utils import LabelSmoother
from transformers.trainer_utils import (
    EvalPrediction,
    TrainerMemoryTracker,
    TrainOutput,
)
from transformers.utils.generic import can_return_loss, find_labels

from ..arguments.deprecated import DROPPED_IN
from ..callbacks import (
    call_first_who_add_to_logs,
    default_callbacks,
    display_callback,
    jit_checkpoint,
    report_callback,
    reports_among,
)
from ..checkpoints import folders
from ..data import dataloaders
from ..data.faults import refuse_in_starting_process
from ..data.split import split
from ..data.transfer import BatchTransfer
from ..distributed import Processes, absent_named
from ..errors import MisconfigurationException
from ..guards.exhausted import PLACING, TRAINING, explained
from ..guards.growth import free_unused, make_guard
from ..overrides import Overrides
from ..terminal import lost_output_ignored
from ..training_args import TrainingArguments
from . import model_files, validation
from . import optimizer as optim
from .accelerator import Accelerator
from .adamw import total_norm
from .after_step import AfterStep
from .counts import flos_per_token, main_input, tokens_in
from .events import Events
from .hooks import Hooks, StatePair
from .hub import Hub
from .introspection import accepts_loss_kwargs, base_model, require_trainable, spans_devices
from .items import NumItemsProbe, items_of
from .loop import TrainingRun
from .loss import (
    count_items,
    divisors,
    divisors_of_all,
    items_of_all,
    loss_of,
    own_items,
    shifts_labels,
    smoothed_loss,
    warn_of_assumption,
)
from .masks import AttentionMasks
from .microbatches import sizes_to_begin_with
from .optimizer import set_mode
from .plan import StepPlan
from .precision import MixedPrecision, set_tf32
from .preparation import prepared_for_training
from .replicas import add_nothing, inside
from .run_folder import ending_in_order, own_run_folder
from .run_state import begin_state, new_state
from .saver import WRITERS
from .saving import Saving
from .search import Search
from .setup import (
    default_collator,
    label_smoother,
    processing_class_of,
    seed_all,
    set_log_level,
    settle_accumulation,
)
from .shards import total_norm as norm_of_shards
from .wrapping import is_placed, wrapped

logger = logging.getLogger(__name__)


class Trainer(AfterStep, Saving, Hub, Search):
    """Trains, evaluates and predicts with a model; transformers' `Trainer`, on the device that this machine has.

    Args:
        model: any module whose forward() takes a batch's entries by name and returns a loss, first or under "loss",
            when labels are given. It is moved to `args.device`.
        args: defaults to `TrainingArguments()`.
        data_collator: makes a batch from a list of items. Default: pads with `processing_class` if that can pad.
        train_dataset, eval_dataset: map-style or iterable; `eval_dataset` may be a dictionary of datasets by name.
        processing_class: tokenizer or processor; saved with the model.
        model_init: makes the model instead, anew for each call of train().
        compute_loss_func: `(outputs, labels, num_items_in_batch) -> loss`, normalised over `num_items_in_batch`, the
            number of labels in the whole update.
        compute_metrics: `EvalPrediction -> dict` of metrics.
        callbacks: added to the default ones.
        optimizers: an optimizer and a schedule to use instead of those that the arguments describe.
        optimizer_cls_and_kwargs: a class and its settings to use instead of `args.optim`.
        preprocess_logits_for_metrics: `(logits, labels) -> logits`, applied to each batch before they are gathered.
        tokenizer: deprecated name of `processing_class`.

    Raises:
        MisconfigurationException: for arguments that contradict each other or that the device cannot do.
    """

    compute_loss_func: Callable | None
    label_smoother: LabelSmoother | None
    _mt_num_items_probe: NumItemsProbe
    # True in a subclass whose compute_loss normalises over num_items_in_batch, False if it is the mean of its batch
    loss_is_scaled_for_ga: bool | None = None
    current_gradient_accumulation_steps: int = 1
    _mt_loss_divisor: float = 1.0  # of the batch whose step comes next
    _mt_loss_is_normalised: bool | None = None  # over the update, by compute_loss; None if it did not run
    current_flos: float = 0.0  # since they were last added to the state's
    _mt_tokens_before: int = 0  # the run that goes on
    _mt_flos_per_token: int | None = None
    _created_lr_scheduler = False  # whether `lr_scheduler` is from here: such a one is for one train() only

    def __init__(
        self,
        model: nn.Module | None = None,
        args: TrainingArguments | None = None,
        data_collator: Callable | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Callable[..., nn.Module] | None = None,
        compute_loss_func: Callable | None = None,
        compute_metrics: Callable[[EvalPrediction], dict] | None = None,
        callbacks: list[TrainerCallback | type[TrainerCallback]] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[type, dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable | None = None,
        *,
        tokenizer: Any = None,
    ) -> None:
        self.args = args = args or TrainingArguments(output_dir="tmp_trainer")
        self._mt_overrides = Overrides.of(self, Trainer)
        args.use_transformers_choices()
        self._mt_processes = Processes.of(args)
        self.is_fsdp_enabled = bool(args.fsdp)
        seed_all(self.args)
        self._memory_tracker = TrainerMemoryTracker(args.skip_memory_metrics)
        self._memory_tracker.start()
        set_log_level(args)
        self.processing_class = processing_class_of(processing_class, tokenizer)
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.model_init = model_init
        self.compute_loss_func = compute_loss_func
        self.compute_metrics = compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.optimizer, self.lr_scheduler = optimizers
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        self.neftune_noise_alpha = args.neftune_noise_alpha
        self.data_collator: Any = data_collator
        validation.check_model(model, model_init)
        validation.check_optimizers(optimizers, optimizer_cls_and_kwargs, model_init)
        validation.check_processes(args, self._mt_processes)
        validation.check_sharding(args, self._mt_processes, model, optimizers)
        has_own_loader = self._mt_overrides.has("get_eval_dataloader")
        validation.check_evaluation(args, eval_dataset, compute_metrics, has_own_loader)
        validation.check_training(args, train_dataset, data_collator)

        settle_accumulation(args)
        set_tf32(args.device, args.tf32)
        self._mt_memory_guard = make_guard(args)
        self._train_batch_size = args.train_batch_size
        self._mt_use_precision(MixedPrecision(args.device, args.mixed_precision))
        self._mt_transfer, self._mt_attention_masks = BatchTransfer(args.device), AttentionMasks(args.device)
        self.is_in_train = False
        self._mt_use_model(model if model is not None else self.call_model_init())
        self.label_smoother = label_smoother(args, self.model)
        self.data_collator = self.data_collator or default_collator(self.processing_class)

        own = [*default_callbacks(args), *(jit := jit_checkpoint(args)), *report_callback(args)]
        for callback in jit:
            callback.set_trainer(self)
        added = [*own, *(callbacks or []), display_callback(args)]
        handler = CallbackHandler(added, self.model, self.processing_class, self.optimizer, self.lr_scheduler)
        self._mt_events = Events(args, handler)
        self._mt_saver = self._mt_new_saver()
        call_first_who_add_to_logs(self.callback_handler.callbacks)
        if args.push_to_hub:
            self.init_hf_repo()
        if args.should_save:
            model_files.make_folder(args.output_dir)
        self.state = new_state(self._mt_events)
        self.state.is_local_process_zero = self.is_local_process_zero()
        self.state.is_world_process_zero = self.is_world_process_zero()
        self._mt_events.fire("on_init_end")
        self._memory_tracker.stop_and_update_metrics()

    @lost_output_ignored()
    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Trains the model.

        Args:
            resume_from_checkpoint: a checkpoint folder, or True for the newest in `args.output_dir`.
            trial: the trial of a search for hyper-parameters; see hyperparameter_search.
            ignore_keys_for_eval: keys of the model's outputs to leave out of predictions in evaluations.

        Raises:
            MisconfigurationException: if there is nothing to train on or the checkpoint does not fit.
        """
        refuse_in_starting_process()
        self._memory_tracker.start()
        self._mt_overrides = Overrides.of(self, Trainer)
        self._mt_events.args = self.args
        if self.train_dataset is None and not self._mt_overrides.has("get_train_dataloader"):
            raise MisconfigurationException("There is nothing to train on: give the Trainer a train_dataset.")
        self.ignore_keys_for_eval = ignore_keys_for_eval
        if self.model_init is not None:
            seed_all(self.args)
            self._mt_use_model(self.call_model_init(trial))
        self._hp_search_setup(trial)
        self.args.output_dir = os.path.abspath(self.args.output_dir)  # a callback may change the working folder
        model_files.make_folder(self.args.output_dir)
        run_dir, processes = self._get_output_dir(trial), self._mt_processes
        with absent_named(self._mt_what_comes), own_run_folder(run_dir, self.args, processes):
            self._mt_saver, self.is_in_train = self._mt_new_saver(), True
            try:
                with ending_in_order(lambda: self._mt_run, self._mt_events, self._mt_saver.wait):
                    return self._mt_train(run_dir, resume_from_checkpoint, trial)
            finally:
                self._mt_run, self.is_in_train = None, False
                self._mt_close_workers()

    def _mt_train(self, run_dir: str, resume_from_checkpoint: str | bool | None, trial: Any) -> TrainOutput:
        """Trains the model into `run_dir`, which is this run's alone."""
        resume_from = self._mt_processes.first_does(
            lambda: folders.checkpoint_to_resume(resume_from_checkpoint, run_dir)
        )
        if self.model_init is not None:  # the optimizer of an earlier run does not know the new model
            self.optimizer = self.lr_scheduler = None
        elif self._created_lr_scheduler:  # a schedule is for one run; the optimizer stays, with what it has learnt
            self.lr_scheduler = None
        self._created_lr_scheduler = False
        self._train_batch_size, self._mt_examples_at_a_time = sizes_to_begin_with(self.args, resume_from)
        for report in reports_among(self.callback_handler.callbacks):
            batch, whole = self.get_total_train_batch_size(self.args), run_dir == self.args.output_dir
            report.expect(run_dir, resume_from, batch, draws=whole)
        prepared = prepared_for_training(
            self.model,
            self.args,
            optimizer=self.optimizer,
            processing_class=self.processing_class,
            noise_alpha=self.neftune_noise_alpha,
            is_distributed=self._mt_processes.is_distributed,
            overrides=self._mt_overrides,
            move_to_device=self._move_model_to_device,
        )
        with absent_named(self._mt_what_comes), explained(self._mt_describe_run, TRAINING), prepared:
            return self._mt_begin_run(resume_from, trial).run()

    def _mt_begin_run(self, resume_from: str | None = None, trial: Any = None) -> TrainingRun:
        """Returns a run with all that it needs made, which goes on from the checkpoint `resume_from`."""
        args, run_dir = self.args, self._get_output_dir(trial)
        loader = self.callback_handler.train_dataloader = self.get_train_dataloader()
        plan = StepPlan.of(loader, args)
        model = self.model_wrapped = self._wrap_model(self.model)
        self.create_optimizer_and_scheduler(plan.max_steps)
        set_mode(self.optimizer, training=True)
        self.accelerator.prepare(model, self.optimizer)
        begin_state(
            self._mt_events,
            args,
            resume_from,
            self._load_callback_state,
            max_steps=plan.max_steps,
            num_train_epochs=plan.epochs,
            train_batch_size=self._mt_examples_at_a_time or self._train_batch_size,
            is_local_process_zero=self.is_local_process_zero(),
            is_world_process_zero=self.is_world_process_zero(),
        )
        self._mt_saver.note_earlier(run_dir, None if resume_from is None else self.state.global_step)
        self._mt_note_trial()
        handler = self.callback_handler
        handler.model, handler.optimizer, handler.lr_scheduler = self.model, self.optimizer, self.lr_scheduler
        self._mt_run = run = TrainingRun(
            args=args,
            model=model,
            optimizer=self.optimizer,
            lr_scheduler=self.lr_scheduler,
            loader=loader,
            plan=plan,
            accelerator=self.accelerator,
            precision=self._mt_precision,
            processes=self._mt_processes,
            events=self._mt_events,
            hooks=self._mt_hooks(model, trial),
            checkpointing=self._mt_saver.checkpointing(
                run_dir,
                save=functools.partial(self._save_checkpoint, model, trial),
                load=(self._load_from_checkpoint, self._load_optimizer_and_scheduler, self._load_scaler),
                load_rng=self._load_rng_state,
            ),
            overrides=self._mt_overrides,
            counts=StatePair(self._mt_counts, self._mt_set_counts),
            memory_guard=self._mt_memory_guard,
            batch_size=self._train_batch_size,
            update_size=self.get_total_train_batch_size(args),
            examples_at_a_time=self._mt_examples_at_a_time,
            num_examples=None if plan.batches_per_epoch is None else self.num_examples(loader),
        )
        if args.save_async and args.save_strategy != "no":
            self._mt_overrides.allow("saving while training goes on", *WRITERS)
        if resume_from is not None:
            run.resume(resume_from)
        self._mt_tokens_before = self.state.num_input_tokens_seen
        return run

    def _mt_hooks(self, model: nn.Module, trial: Any) -> Hooks:
        def log_evaluate_save(loss: Any, norm: Any, epoch: float | None, start: float, rate: float | None) -> None:
            ignored = self.ignore_keys_for_eval
            self._maybe_log_save_evaluate(loss, norm, model, trial, epoch, ignored, start, learning_rate=rate)

        return Hooks(
            get_batch_samples=self.get_batch_samples,
            divisors=self._mt_divisors,
            item_counts=self._mt_item_counts,
            split_batch=self.split_batch,
            training_step=self._mt_training_step,
            take_part=self._mt_take_part,
            count_batch=self._mt_count_batch,
            clip_grad_norm=self._clip_grad_norm,
            get_grad_norm=lambda model, clipped: self._get_grad_norm(model, grad_norm=clipped),
            get_learning_rate=self._get_learning_rate,
            log_evaluate_save=log_evaluate_save,
            evaluate_at_start=lambda: self._evaluate(trial, self.ignore_keys_for_eval, skip_scheduler=True),
            log=self.log,
            store_flos=self.store_flos,
            end=self._mt_end_run,
        )

    def _mt_training_step(
        self, model: nn.Module, batch: Any, num_items: Any, divisor: float, batches: int
    ) -> torch.Tensor:
        self.current_gradient_accumulation_steps, self._mt_loss_divisor = batches, divisor
        return self.training_step(model, batch, num_items)

    def _mt_end_run(self, metrics: dict[str, float]) -> None:
        """Does what comes after the last step: the log of the whole run, the best weights, and the last event."""
        self._finalize_training(metrics)
        if self.args.load_best_model_at_end:
            self._load_best_model()
        self._mt_saver.keep_only_best(self._get_output_dir(self._trial))
        self._mt_events.fire("on_train_end")
        self._finish_current_push()
        self._mt_saver.require_saved()

    def _mt_what_comes(self) -> str:
        if self._mt_run is None:
            return "the begin of training"
        step = self.state.global_step
        return f"step {step + 1}" if step < self.state.max_steps else "the end of training"

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        """Returns the model as the loops call it: compiled, sharded, or one of several replicas in training."""
        return wrapped(model, self.model_wrapped, self.args, self._mt_processes, training)

    def get_total_train_batch_size(self, args: TrainingArguments) -> int:
        """Examples in an optimizer step of all processes."""
        return self._train_batch_size * args.gradient_accumulation_steps * args.world_size

    def _clip_grad_norm(self, model: nn.Module) -> torch.Tensor:
        """Clips the gradients to `args.max_grad_norm`; their norm before that, on the device.

        Where nobody looks at them in between, the optimizer's step does it: see `Gradients`.
        """
        if self._mt_run is not None and model is self._mt_run.model:
            norm = self._mt_run.gradients.clip_at_step(self.args.max_grad_norm)
            if norm is not None:
                return norm
        return self.accelerator.clip_grad_norm_(model.parameters(), self.args.max_grad_norm)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """The norm of the gradients, for the log: `grad_norm`, or measured where nothing was clipped."""
        if grad_norm is not None:
            return grad_norm
        self.accelerator.unscale_gradients()
        if self.is_fsdp_enabled:
            return norm_of_shards(model.parameters())
        return total_norm([p.grad for p in model.parameters() if p.grad is not None])

    @property
    def tokenizer(self) -> Any:
        """Deprecated name of `processing_class`."""
        warnings.warn(
            f"`Trainer.tokenizer` is deprecated and will be removed in mps_trainer {DROPPED_IN}. Use "
            "`processing_class`.",
            FutureWarning,
            stacklevel=2,
        )
        return self.processing_class

    @tokenizer.setter
    def tokenizer(self, processing_class: Any) -> None:
        self.processing_class = processing_class

    def end(self) -> None:
        """For the end of a script: trackers end, and several processes part. Nothing is left to do with one."""
        self.accelerator.end_training()

    # Making

    def _mt_use_precision(self, precision: MixedPrecision) -> None:
        """Computes in this format from now on."""
        self._mt_precision = precision
        prepare = functools.partial(dataloaders.prepare, args=self.args, processes=self._mt_processes)
        self.accelerator = Accelerator(self.args, precision, prepare_loader=prepare)
        self.gather_function = self.accelerator.gather_for_metrics

    def _mt_use_model(self, model: nn.Module) -> None:
        args, base = self.args, base_model(model)
        require_trainable(model)
        bitsandbytes = getattr(model, "quantization_method", None) == "bitsandbytes"  # has no .to()
        self.is_model_parallel = spans_devices(model)
        self.place_model_on_device = is_placed(model, args)
        if self.place_model_on_device and not bitsandbytes:
            with explained(self._mt_describe_run, PLACING):
                self._move_model_to_device(model, args.device)
        self.model = self.model_wrapped = model
        self._mt_flos_per_token = None
        self.label_names = find_labels(type(base)) if args.label_names is None else args.label_names
        self.can_return_loss = can_return_loss(type(base))
        self.model_accepts_loss_kwargs = accepts_loss_kwargs(model)
        self._mt_num_items_probe = NumItemsProbe(model)
        self._signature_columns = None
        config: Any = getattr(model, "config", None)
        if config is not None:
            config.use_cache = args.use_cache

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        model.to(device)

    # The loss

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """Runs forward and backward for one batch; returns its part of the update's loss, detached, on the device."""
        if not inside(model).training:  # there was an evaluation
            model.train()
            set_mode(self.optimizer, training=True)
        inputs = self._prepare_inputs(inputs)
        self._mt_loss_is_normalised = None
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        every = self.args.torch_empty_cache_steps
        if every is not None and self.state.global_step % every == 0:
            free_unused(self.args.device)
        if not self._mt_is_share_of_update(num_items_in_batch):
            if self._mt_loss_divisor != 1:
                loss = loss / self._mt_loss_divisor
        elif self._mt_processes.is_distributed and self.args.average_tokens_across_devices:
            loss = loss * self._mt_processes.size  # gradients are averaged, and this is one of several parts of a sum
        self.accelerator.backward(loss)
        return loss.detach()

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Returns the loss of one batch, the mean over its items; with `return_outputs`, a pair of it and the outputs.

        The Trainer weighs the losses of accumulated batches by their items. A loss of yours that is already normalised
        over `num_items_in_batch`, the items of the whole update, needs `loss_is_scaled_for_ga = True`; one that is the
        mean of its own batch, False. Where that is None, a loss that does not come from here counts as normalised if
        the model takes `num_items_in_batch` (`model_accepts_loss_kwargs`), as it does in transformers.
        """
        self._mt_loss_is_normalised = self.compute_loss_func is not None and num_items_in_batch is not None
        takes_labels = self.label_smoother is not None or self.compute_loss_func is not None
        labels = inputs.pop("labels", None) if takes_labels else None
        items = num_items_in_batch if self.model_accepts_loss_kwargs else None
        outputs = model(**inputs) if items is None else self._mt_num_items_probe.forward(model, inputs, items)
        if self.compute_loss_func is not None:
            loss = self.compute_loss_func(outputs, labels, num_items_in_batch=num_items_in_batch)
        elif labels is not None and self.label_smoother is not None:
            smoothed = smoothed_loss(self.label_smoother, model, outputs, labels, items)
            loss, self._mt_loss_is_normalised = smoothed
        else:
            loss = loss_of(outputs, inputs)
            self._mt_loss_is_normalised = bool(self._mt_num_items_probe.is_used) and num_items_in_batch is not None
        return (loss, outputs) if return_outputs else loss

    def compute_loss_context_manager(self) -> contextlib.AbstractContextManager:
        """Returns the context of each forward pass: autocast if asked for; on an accelerator, masks nobody reads."""
        contexts: list[contextlib.AbstractContextManager] = []
        if self._mt_attention_masks.applies:
            contexts.append(self._mt_attention_masks.in_use())
        if self._mt_precision.dtype is not None:
            contexts.append(self._mt_precision.autocast())
        if self._mt_overrides.has("autocast_smart_context_manager"):
            contexts.append(self.autocast_smart_context_manager())
        if not contexts:
            return contextlib.nullcontext()
        stack = contextlib.ExitStack()
        for context in contexts:
            stack.enter_context(context)
        return stack

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> contextlib.AbstractContextManager:
        """Returns a context for the forward pass that a subclass may add to it; here, one that does nothing."""
        return contextlib.nullcontext()

    def _mt_take_part(
        self, model: nn.Module, inputs: dict[str, Any], num_items: torch.Tensor | int | None = None
    ) -> None:
        """Runs a backward pass that adds nothing, where this process has no loss and the others wait for it."""
        add_nothing(
            model,
            self._prepare_inputs(inputs),
            forward=self.compute_loss_context_manager,
            compute_loss=functools.partial(self.compute_loss, num_items_in_batch=num_items),
            backward=self.accelerator.backward,
        )

    # The batches of an update

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], torch.Tensor | int | None]:
        """Returns the next batches of an epoch, at most `num_batches`, and how many items all of them have."""
        batches = list(itertools.islice(epoch_iterator, num_batches))
        items = self._get_num_items_in_batch(batches, device)
        run, processes = self._mt_run, self._mt_processes
        if processes.is_distributed:
            padding = set() if run is None else run.padding_after(run.update_begins_at, len(batches))
            items = own_items(items, batches, padding, lambda own: self._get_num_items_in_batch(own, device))
            # what one process has learnt of the model's loss, another may not have: all ask, or none
            asks = self.model_accepts_loss_kwargs or self._mt_has_own_loss
            if asks and self.args.average_tokens_across_devices:
                items = items_of_all(items, processes)
        return batches, items

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> torch.Tensor | int | None:
        """Returns the number of labels in all batches that enter the loss; None if nothing uses it."""
        may_use = self._mt_num_items_probe.is_used is not False or self.label_smoother
        uses = self.model_accepts_loss_kwargs and may_use
        if not (uses or self._mt_has_own_loss):
            return None
        return items_of(batch_samples, shifts_labels(base_model(self.model)))

    def _mt_divisors(self, batches: list[Any]) -> list[float | None]:
        """Returns the divisor for the loss of each batch of an update; None for one without items and loss."""
        if not self._mt_processes.is_distributed:
            return divisors(self._mt_item_counts(batches)) if len(batches) > 1 else [1.0]
        padding = set() if self._mt_run is None else self._mt_run.padding_among_last(len(batches))
        counts = self._mt_item_counts(batches)
        return divisors_of_all(counts, padding, self._mt_processes, self.args.average_tokens_across_devices)

    def _mt_item_counts(self, batches: list[Any]) -> list[int | None]:
        shifted = shifts_labels(base_model(self.model))
        return [count_items(batch, self.label_names, shifted) for batch in batches]

    def split_batch(self, batch: Any, most: int) -> list[Any]:
        """Splits `batch` into parts of at most `most` examples, in their order; for `auto_find_batch_size`.

        Tensors with an entry for each example are cut. Override it for batches in which these do not all have the
        examples in their first dimension.

        Raises:
            UnsplittableBatchError: if it cannot be told where an example ends.
        """
        return split(batch, most)

    @property
    def _mt_has_own_loss(self) -> bool:
        """True if the loss is a function's or a subclass's, which may use the number of items."""
        replaced = self._mt_overrides.has("compute_loss", "training_step", "get_batch_samples")
        return replaced or self.compute_loss_func is not None

    def _mt_is_share_of_update(self, num_items_in_batch: torch.Tensor | int | None) -> bool:
        """True if the loss that compute_loss just gave is normalised over the whole update already."""
        if self.loss_is_scaled_for_ga is not None:
            return self.loss_is_scaled_for_ga
        if self._mt_loss_is_normalised is not None:
            return self._mt_loss_is_normalised
        normalised = self.model_accepts_loss_kwargs and num_items_in_batch is not None
        if normalised and self._mt_loss_divisor != 1:
            warn_of_assumption(type(self).__name__)
        return normalised

    # Counting tokens and operations

    def _mt_count_batch(self, inputs: Any) -> None:
        self.current_flos += float(self.floating_point_ops(inputs))
        self._track_num_input_tokens(inputs)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Returns an estimate for forward and backward of a batch; 0 if the model or the batch does not tell enough.

        See `flos_per_token`.
        """
        tensor = main_input(inputs, self._mt_main_input_name)
        if tensor is None:
            return 0
        if self._mt_flos_per_token is None:
            self._mt_flos_per_token = flos_per_token(self.model)
        return self._mt_flos_per_token * tensor.numel()

    def store_flos(self) -> None:
        """Adds the operations counted since the last call to `state.total_flos`."""
        self.state.total_flos += self._mt_processes.sum([self.current_flos])[0]
        self.current_flos = 0.0

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """Adds the tokens of a batch to `state.num_input_tokens_seen`, if the arguments ask for it."""
        which = self.args.include_num_input_tokens_seen
        if which == "no":
            return
        padding = getattr(self.processing_class, "pad_token_id", None)
        number = tokens_in(inputs, self._mt_main_input_name, which == "non_padding", padding)
        if number is not None:
            self.state.num_input_tokens_seen += int(self._mt_processes.sum([number])[0])

    def _mt_counts(self) -> tuple[float, int]:
        return self.current_flos, self.state.num_input_tokens_seen

    def _mt_set_counts(self, counts: tuple[float, int]) -> None:
        self.current_flos, self.state.num_input_tokens_seen = counts

    # Optimizer and schedule

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Makes the optimizer, then the schedule over `num_training_steps` steps."""
        self.create_optimizer()
        self.create_scheduler(num_training_steps=num_training_steps)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """The optimizer that there is, else one for `model` (default: the Trainer's), kept as `optimizer`.

        It comes from `optimizer_cls_and_kwargs` if the Trainer was given that, else from `args.optim`.

        Raises:
            MisconfigurationException: what `get_optimizer_cls_and_kwargs` raises.
        """
        if self.optimizer is None:
            model = self.model if model is None else model
            if self.is_fsdp_enabled:
                model = self._wrap_model(model)  # it updates the parts that this process will have
            decay = self.get_decay_parameter_names(model)
            groups = optim.parameter_groups(model, decay, self.args.weight_decay)
            kind, settings = self.optimizer_cls_and_kwargs or self.get_optimizer_cls_and_kwargs(self.args, model)
            self.optimizer = optim.make_optimizer(kind, settings, groups, model)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """The schedule that there is, else the arguments' for `optimizer` (default: the Trainer's).

        Raises:
            UnknownSettingError: for `lr_scheduler_kwargs` that the schedule does not take.
        """
        if self.lr_scheduler is None:
            optimizer = self.optimizer if optimizer is None else optimizer
            self.lr_scheduler = optim.make_scheduler(self.args, optimizer, num_training_steps)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: TrainingArguments, model: nn.Module | None = None) -> tuple[Any, Any]:
        """The class and the settings of the optimizer that `args.optim` names.

        Args:
            args: `optim`, `optim_args`, `learning_rate`, `adam_*` and for some optimizers others are read.
            model: what to optimize; GaLore and APOLLO need it.

        Raises:
            MissingPackageError: if the optimizer is of a package that is not installed.
            MisconfigurationException: for settings that the optimizer cannot have, or an optimizer that is not
                supported.
        """
        return optim.class_and_settings(args, model)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Names of the parameters that `weight_decay` is for: all but LayerNorm's, biases, and norms by name."""
        return optim.decay_parameter_names(model)

    # What is in them

    def get_num_trainable_parameters(self) -> int:
        """Returns the number of parameters that training changes."""
        return sum(parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad)

    def get_learning_rates(self) -> list[float]:
        """The learning rate of each group of the optimizer.

        Raises:
            ValueError: if there is no optimizer yet.
        """
        return [group["lr"] for group in optim.groups_of(self.optimizer)]

    def get_optimizer_group(self, param: str | nn.Parameter | None = None) -> Any:
        """The optimizer's group that `param`, or the parameter of that name, is in.

        Without `param`, or if no group has it: the list of parameters of each group.

        Raises:
            ValueError: if there is no optimizer yet.
        """
        return optim.group_of(self.optimizer, param, self.model)

    def _get_learning_rate(self) -> float:
        """Returns the learning rate to log: the schedule's last one, of the first group."""
        return optim.learning_rate(self.optimizer, self.lr_scheduler)
