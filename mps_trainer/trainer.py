"""Defines `Trainer`, with every method that a subclass may override. Other modules do the work."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
import transformers.training_args  # noqa: F401 - the enums that the arguments take their members from
from torch import nn
from torch.utils.data import DataLoader, Sampler
from transformers.trainer_callback import CallbackHandler, TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_pt_utils import log_metrics, metrics_format, save_metrics, save_state
from transformers.trainer_utils import (
    EvalLoopOutput,
    EvalPrediction,
    PredictionOutput,
    TrainerMemoryTracker,
    TrainOutput,
    default_compute_objective,
    speed_metrics,
    validate_quantization_for_training,
)
from transformers.utils.generic import can_return_loss, find_labels

from . import search, trainer_checks
from .arguments.accelerator_config import accumulation_steps
from .arguments.deprecated import processing_class_from, warn_of_tokenizer
from .callbacks import all_callbacks, call_first_who_add_to_logs
from .callbacks.events import Events, ReportingHandler
from .checkpoints import folders, loading, writers
from .checkpoints.checkpoints import Checkpoints
from .checkpoints.loading import OPTIMIZER, SCALER, SCHEDULER
from .checkpoints.output_folder import make_folder
from .checkpoints.rng import read_rng, rng_state, set_rng
from .checkpoints.saver import CheckpointSaver
from .checkpoints.trainer_state_file import SavableLogs
from .data import dataloaders
from .data.buckets import BucketBatchSampler, LengthBuckets, buckets_of
from .data.columns import (
    ColumnRemover,
    columns_of,
    is_table,
    model_columns_of,
    signature_columns,
    without_unused_columns,
)
from .data.epoch_loader import num_examples, prepare_loader
from .data.faults import refuse_in_starting_process
from .data.missing_columns import explaining_transform
from .data.plan import StepPlan
from .data.samplers import eval_sampler, train_sampler, training_buckets
from .data.split import split
from .data.transfer import BatchTransfer
from .data.workers import close_workers
from .distributed import Processes, leave, sharded
from .errors import MisconfigurationException
from .evaluation.best_metric import record_if_best, watched_metric
from .evaluation.evaluator import EvaluationParts, evaluate_dataset, evaluate_each, run_evaluation
from .evaluation.metrics import as_cell
from .evaluation.predictions import has_loss, labels_of, logits_of
from .guards.memory import limit_memory, release_buffers
from .guards.memory_errors import PLACING, explained
from .guards.supervised import SupervisedRun
from .hub import card, upload
from .loop.accelerator import TrainerAccelerator
from .loop.initial_state import load_callbacks, new_state
from .loop.label_smoothing import make_label_smoother
from .loop.loss_divisors import BatchWeight
from .loop.loss_normalisation import LossNormalisation, LossSettings
from .loop.run import TrainingRun
from .loop.run_context import run_of
from .model import quantized
from .model.introspection import (
    accepts_loss_kwargs,
    base_model,
    flos_per_token,
    forget_operations,
    main_input,
    spans_devices,
    tokens_in,
)
from .model.number_formats import check_formats
from .model.patches.masks import AttentionMasks
from .model.patches.unread_tokens import unread_tokens_skipped
from .model.precision import MixedPrecision, set_tf32
from .model.preparation import skips_unread_tokens
from .model.wrapping import is_placed, wrapped
from .optim import factory as optim
from .optim.adamw import total_norm
from .optim.factory import follows_metric, set_mode
from .overrides import Overrides
from .reports.recorder import compare_trials
from .training_args import TrainingArguments
from .utils.log_level import set_log_level
from .utils.numbers import plain
from .utils.seeds import seed_all
from .utils.terminal import lost_output_ignored

logger = logging.getLogger(__name__)


class Trainer:
    """Trains, evaluates and predicts like transformers' `Trainer`, on the best device of this machine.

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

    callback_handler: CallbackHandler  # transformers' handler, which calls the callbacks
    control: TrainerControl  # the requests of the callbacks
    state: TrainerState
    model_wrapped: nn.Module  # compiled, if the arguments ask for it; otherwise the model
    # transformers' Trainer has these, and libraries ask; the arguments that would set them are refused
    is_deepspeed_enabled = is_fsdp_xla_enabled = False
    deepspeed = None
    # True in a subclass whose compute_loss normalises over num_items_in_batch, False if it is the mean of its batch
    loss_is_scaled_for_ga: bool | None = None
    current_gradient_accumulation_steps: int = 1
    current_flos: float = 0.0  # since they were last added to the state's
    ignore_keys_for_eval: list[str] | None = None
    model_preparation_time: float | None = None  # seconds, once a model was made ready for evaluation alone
    hub_model_id: str | None = None  # owner/name, once init_hf_repo has been called
    push_in_progress: Any = None
    hp_name: Callable[[Any], str] | None = None
    hp_search_backend: Any = None  # transformers' HPSearchBackend while a search runs
    objective: Any = None  # the trial's latest evaluation computed it
    _trial: Any = None
    _signature_columns: list[str] | None = None  # these may reach the model; None until they are asked for
    _created_lr_scheduler = False  # True if the Trainer made `lr_scheduler`, which is for one train() only
    _mt_methods: ClassVar[dict[str, Any]] = {}
    _mt_created_with: float | None = None  # the learning rate that the optimizer from here was created with
    _mt_run: TrainingRun | None = None  # the one that is under way
    _mt_supervised: SupervisedRun | None = None  # the one that is under way, with `--restarts` or torchrun
    _mt_length_buckets: LengthBuckets | None = None  # the training data has them; None until they are asked for

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
        trainer_checks.check_arguments(args)
        trainer_checks.check_subclass(type(self))
        self._mt_overrides = Overrides.of(self)
        args.use_transformers_choices()
        self._mt_processes = Processes.of(args)
        self.is_fsdp_enabled = bool(args.fsdp)
        self._memory_tracker = TrainerMemoryTracker(args.skip_memory_metrics)
        self._memory_tracker.start()
        seed_all(args.seed, args.full_determinism)
        set_log_level(args.get_process_log_level(), include_own=args.log_level != "passive")
        args.gradient_accumulation_steps = accumulation_steps(args)
        set_tf32(args.device, args.tf32)
        self.processing_class = processing_class_from(processing_class, tokenizer)
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.model_init = model_init
        self.compute_loss_func = compute_loss_func
        self.compute_metrics = compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self._eval_dataloaders: dict[str, DataLoader] = {}  # by name; libraries read it in overrides of the method
        self.optimizer, self.lr_scheduler = optimizers
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        self.neftune_noise_alpha = args.neftune_noise_alpha
        self.data_collator: Any = data_collator
        trainer_checks.check_model(model, model_init)
        trainer_checks.check_optimizers(optimizers, optimizer_cls_and_kwargs, model_init)
        trainer_checks.check_processes(args, self._mt_processes)
        trainer_checks.check_sharding(args, self._mt_processes, model, optimizers)
        trainer_checks.check_evaluation(args, eval_dataset, compute_metrics, self._mt_overrides.get_eval_dataloader)
        trainer_checks.check_training(args, train_dataset, data_collator)

        if args.memory_guard and args.device.type == "mps":
            limit_memory(args.device, args.memory_fraction)
        self._train_batch_size = args.train_batch_size
        self._mt_precision = MixedPrecision(args.device, args.mixed_precision)
        if args._stands_in:  # libraries that build on transformers' Trainer ask Accelerate's state by themselves
            _ = self.accelerator
        self._mt_transfer, self._mt_attention_masks = BatchTransfer(args.device), AttentionMasks(args.device)
        self.is_in_train = False
        self._mt_use_model(model if model is not None else self.call_model_init())
        # a subclass may set these after this, so a further model of `model_init` does not change them
        kind = type(base_model(self.model))
        self.label_names = find_labels(kind) if args.label_names is None else args.label_names
        self.can_return_loss = can_return_loss(kind)
        self.model_accepts_loss_kwargs = accepts_loss_kwargs(self.model)
        self.label_smoother = make_label_smoother(args.label_smoothing_factor, self.model)
        self.data_collator = self.data_collator or dataloaders.default_collator(self.processing_class)

        added = all_callbacks(args, self, callbacks or [])
        parts = self.model, self.processing_class, self.optimizer, self.lr_scheduler
        self.callback_handler, self.control = ReportingHandler(added, *parts), TrainerControl()
        self._mt_checkpoints = Checkpoints(args.output_dir)
        call_first_who_add_to_logs(self.callback_handler.callbacks)
        if args.push_to_hub:
            self.init_hf_repo()
        if args.should_save:
            make_folder(args.output_dir)
        self.state = new_state(self._mt_events)
        self.state.is_local_process_zero = self.is_local_process_zero()
        self.state.is_world_process_zero = self.is_world_process_zero()
        self._mt_events.fire("on_init_end")
        self._memory_tracker.stop_and_update_metrics()

    # A run

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
        trainer_checks.check_not_training(self.is_in_train)
        self._memory_tracker.start()
        self._mt_overrides = Overrides.of(self)
        if self.train_dataset is None and not self._mt_overrides.get_train_dataloader:
            raise MisconfigurationException("There is nothing to train on: give the Trainer a train_dataset.")
        self.ignore_keys_for_eval = ignore_keys_for_eval
        self._hp_search_setup(trial)  # may set the seed with which the model is made
        if self.model_init is not None:
            seed_all(self.args.seed, self.args.full_determinism)
            self.model_wrapped = None  # type: ignore[assignment] # frees the earlier run's model before the next one
            for owner in (self, self.callback_handler):
                owner.model = owner.optimizer = owner.lr_scheduler = None
            self._mt_use_model(self.call_model_init(trial))
        elif self._created_lr_scheduler:  # a schedule is for one run; the optimizer stays, with what it has learnt
            self.lr_scheduler = None
        self._created_lr_scheduler = False
        with run_of(self, resume_from_checkpoint, trial) as run:
            for update in run.updates():
                run.accumulate(update)
                run.step_optimizer()
                run.log_evaluate_save()
            return run.finish()

    # The model

    @functools.cached_property
    def accelerator(self) -> TrainerAccelerator:
        """Accelerate's `Accelerator`, with the device and precision of the arguments. Training does not use it."""
        return TrainerAccelerator(self.args, self._mt_precision)

    @functools.cached_property
    def gather_function(self) -> Callable:
        """Accelerate's `gather_for_metrics`."""
        return self.accelerator.gather_for_metrics

    def _mt_use_model(self, model: nn.Module) -> None:
        """Sets `model` as the Trainer's, moves it to the device, and derives settings from it."""
        args = self.args
        validate_quantization_for_training(model)
        quantized.keep_trainable(model)
        self.is_model_parallel = spans_devices(model)
        self.place_model_on_device = is_placed(model, args)
        if self.place_model_on_device:
            with explained(self, PLACING):
                self._move_model_to_device(model, args.device)
        self.model = self.model_wrapped = model
        self._mt_normalisation = LossNormalisation()
        self._signature_columns = None
        forget_operations(model)
        config: Any = getattr(model, "config", None)
        if config is not None:
            config.use_cache = args.use_cache

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """Returns a new model from `model_init`, which takes no argument or the trial.

        Raises:
            RuntimeError: if it takes more, or returns None.
        """
        assert self.model_init is not None
        return search.new_model(self.model_init, trial)

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        """Moves the model to the device as a whole, before it is used."""
        check_formats(model, device)
        quantized.move(model, device)

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        """Returns the wrapped model for the loops: compiled, sharded, or a replica in training."""
        return wrapped(model, self.model_wrapped, self.args, self._mt_processes, training)

    def get_num_trainable_parameters(self) -> int:
        """Returns the number of parameters that training changes."""
        trainer_checks.check_has_model(self.model)
        return sum(parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad)

    @property
    def tokenizer(self) -> Any:
        """Deprecated name of `processing_class`."""
        warn_of_tokenizer()
        return self.processing_class

    @tokenizer.setter
    def tokenizer(self, processing_class: Any) -> None:
        self.processing_class = processing_class

    def end(self) -> None:
        """Ends the trackers and the process group at the end of a script. Not needed with one process."""
        leave()

    # The batches of an update

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], torch.Tensor | int | None]:
        """Returns the next batches of an epoch, at most `num_batches`, and the number of their items."""
        batches = list(itertools.islice(epoch_iterator, num_batches))
        return batches, self._get_num_items_in_batch(batches, device)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> torch.Tensor | int | None:
        """Returns the number of labels in all batches that enter the loss; None if nothing uses it.

        In an update these are the batches of all processes, as in transformers.
        """
        update = self._mt_run.loss if self._mt_run is not None and self._mt_run.loss.is_loading else None
        return self._mt_normalisation.items(batch_samples, self.model, LossSettings.of(self), update)

    def split_batch(self, batch: Any, most: int) -> list[Any]:
        """Splits `batch` into parts of at most `most` examples, in their order; for `auto_find_batch_size`.

        Tensors with an entry for each example are cut. Override it for batches in which these do not all have the
        examples in their first dimension.

        Raises:
            UnsplittableBatchError: if it is unclear where an example ends.
        """
        return split(batch, most)

    def get_total_train_batch_size(self, args: TrainingArguments) -> int:
        """Returns the examples in an optimizer step of all processes."""
        return self._train_batch_size * args.gradient_accumulation_steps * args.world_size

    def set_initial_training_values(
        self, args: TrainingArguments, dataloader: DataLoader
    ) -> tuple[int, int, int, float, int, int, int]:
        """Returns the sizes of a run with the batches of `dataloader`; an override may set epochs and steps.

        Returns:
            The epochs, the steps of an epoch, the examples of the dataset, of all steps and of one step (in all
            processes), the batches of an epoch, and the steps. For a stream of unknown length, an epoch has all steps.

        Raises:
            ValueError: for an empty dataset, or for a stream without `args.max_steps`.
        """
        plan, update_size = StepPlan.of(dataloader, args), self.get_total_train_batch_size(args)
        samples: float = plan.max_steps * update_size
        batches, examples = plan.batches_per_epoch, plan.max_steps * update_size
        if batches is None:
            batches = plan.max_steps * plan.accumulation
        else:
            examples = self.num_examples(dataloader)
            if args.max_steps <= 0:
                samples = examples * args.num_train_epochs
        return plan.epochs, plan.updates_per_epoch, examples, samples, update_size, batches, plan.max_steps

    def get_tp_size(self) -> int:
        """Returns 1: neither layers nor contexts nor sequences are split among processes."""
        return 1

    get_cp_size = get_sp_size = get_tp_size

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Returns a batch on the device.

        Raises:
            ValueError: if it is empty.
        """
        if not inputs:
            raise ValueError(
                "A batch is empty, so the model has no input. Check that the dataset has columns that "
                f"{type(self.model).__name__}.forward takes: "
                f"{', '.join(columns_of(self))}."
            )
        return self._prepare_input(inputs)

    def _prepare_input(self, data: Any) -> Any:
        """Returns a tensor, or anything made of tensors, on the device."""
        return self._mt_transfer(data)

    # The loss

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """Runs forward and backward for one batch; returns its part of the update's loss, detached, on the device."""
        run = self._mt_run
        if run is None or model is not run.model or not all(module.training for module in run.modules):
            model.train()  # it is another one, or an evaluation or a callback has switched a part of it
            set_mode(self.optimizer, training=True)
        inputs = self._prepare_inputs(inputs)
        settings = LossSettings.of(self)
        weight = BatchWeight() if run is None else run.weight_of_current_batch  # set by `accumulate_batches`
        batch = self._mt_normalisation.begin_batch(model, num_items_in_batch, settings)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs, num_items_in_batch=batch.num_items)
        every = self.args.torch_empty_cache_steps
        if every is not None and self.state.global_step % every == 0:
            release_buffers(self.args.device)
        loss = self._mt_normalisation.weighted(loss, weight, num_items_in_batch, settings, type(self).__name__)
        self._mt_precision.backward(loss)
        return loss.detach()

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Returns the loss of one batch, the mean over its items; with `return_outputs`, a pair of it and the outputs.

        The Trainer weighs the losses of accumulated batches by their items. Set
        `loss_is_scaled_for_ga = True` if your own loss is already divided by `num_items_in_batch`, the items of the
        whole update, and False if it is the mean of its own batch. With None, your loss counts as divided if the model
        takes `num_items_in_batch` (`model_accepts_loss_kwargs`), as in transformers.
        """
        normalisation, settings = self._mt_normalisation, LossSettings.of(self)
        labels = inputs.pop("labels", None) if settings.takes_labels else None
        outputs = normalisation.outputs(model, inputs, num_items_in_batch, settings)
        loss = normalisation.loss_of(model, outputs, inputs, labels, num_items_in_batch, settings)
        averages = self._mt_processes.is_distributed and self.args.average_tokens_across_devices
        if averages and normalisation.is_part_of_sum(model, num_items_in_batch, settings):
            loss = loss * self._mt_processes.size  # the gradients of the processes are averaged
        return (loss, outputs) if return_outputs else loss

    def compute_loss_context_manager(self) -> contextlib.AbstractContextManager:
        """Returns the context for computing the loss. On mps it uses attention masks without blocking syncs.

        Autocast covers only the model's own forward: your `compute_loss` receives and computes float32.
        """
        masks = self._mt_attention_masks
        if not self._mt_overrides.autocast_smart_context_manager:
            return masks.in_use() if masks.applies else contextlib.nullcontext()
        stack = contextlib.ExitStack()
        if masks.applies:
            stack.enter_context(masks.in_use())
        stack.enter_context(self.autocast_smart_context_manager())
        return stack

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> contextlib.AbstractContextManager:
        """Returns a context for the forward pass. A subclass may override it; the default does nothing."""
        return contextlib.nullcontext()

    # Gradients, optimizer and schedule

    def _clip_grad_norm(self, model: nn.Module) -> torch.Tensor:
        """Clips the gradients to `args.max_grad_norm`; returns their norm before that, on the device.

        AdamW's step does it if no code reads the gradients in between; then they are only measured here.
        """
        if self._mt_run is not None and model is self._mt_run.model:
            norm = self._mt_run.gradients.leave_clipping_to_step(self.optimizer, self.args.max_grad_norm)
            if norm is not None:
                return norm
        self._mt_precision.unscale(self.optimizer)
        return sharded.full(nn.utils.clip_grad_norm_(model.parameters(), self.args.max_grad_norm))

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """Returns the gradient norm for the log: `grad_norm`, or measured if clipping is off."""
        if grad_norm is not None:
            return grad_norm
        self._mt_precision.unscale(self.optimizer)
        norm_of = nn.utils.get_total_norm if self.is_fsdp_enabled else total_norm
        return sharded.full(norm_of([p.grad for p in model.parameters() if p.grad is not None]))

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Makes the optimizer, then the schedule over `num_training_steps` steps."""
        self.create_optimizer()
        self.create_scheduler(num_training_steps=num_training_steps)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Returns the optimizer; without one, makes and keeps one for `model`, by default the Trainer's.

        It comes from `optimizer_cls_and_kwargs` if the Trainer was given that, else from `args.optim`. The default is
        `optim.adamw.AdamW`, whose step may clip the gradients.

        Raises:
            MisconfigurationException: as `get_optimizer_cls_and_kwargs` does.
        """
        if self.optimizer is None:
            model = self.model if model is None else model
            if self.is_fsdp_enabled:
                model = self._wrap_model(model)  # it updates the parts that this process will have
            decay = self.get_decay_parameter_names(model)
            groups = optim.parameter_groups(model, decay, self.args.weight_decay)
            kind, settings = self.optimizer_cls_and_kwargs or self.get_optimizer_cls_and_kwargs(self.args, model)
            self.optimizer = optim.make_optimizer(kind, settings, groups, model)
            self._mt_created_with = self.args.learning_rate
        else:
            trainer_checks.check_learning_rate(self.args, self.optimizer, self._mt_created_with)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """Returns the schedule; without one, makes and keeps one for `optimizer`, by default the Trainer's.

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
        """Returns the class and the settings of the optimizer that `args.optim` names.

        Args:
            args: `optim`, `optim_args`, `learning_rate`, `adam_*` and for some optimizers others are read.
            model: the model to optimize; GaLore and APOLLO need it.

        Raises:
            MissingPackageError: if the optimizer is of a package that is not installed.
            MisconfigurationException: for settings that the optimizer cannot have, or an optimizer that is not
                supported.
        """
        return optim.class_and_settings(args, model)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Returns the names of the parameters with weight decay: all but LayerNorm's, biases, and norms by name."""
        return optim.decay_parameter_names(model)

    def get_learning_rates(self) -> list[float]:
        """Returns the learning rate of each group of the optimizer.

        Raises:
            ValueError: if there is no optimizer yet.
        """
        return [group["lr"] for group in optim.groups_of(self.optimizer)]

    def get_optimizer_group(self, param: str | nn.Parameter | None = None) -> Any:
        """Returns the optimizer's group that has `param`, or the parameter of that name.

        Without `param`, or if no group has it: the list of parameters of each group.

        Raises:
            ValueError: if there is no optimizer yet.
        """
        return optim.group_of(self.optimizer, param, self.model)

    def _get_learning_rate(self) -> float:
        """Returns the learning rate to log: the schedule's last one, of the first group."""
        return optim.learning_rate(self.optimizer, self.lr_scheduler)

    # Tokens and operations

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Returns an estimate for forward and backward of a batch; 0 if they cannot be counted.

        See `flos_per_token`.
        """
        tensor = main_input(self.model, inputs)
        if tensor is None:
            return 0
        return flos_per_token(self.model) * tensor.numel()

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
        number = tokens_in(self.model, inputs, which == "non_padding", padding)
        if number is not None:
            self.state.num_input_tokens_seen += number  # the run adds the other processes' tokens once per update

    # Loaders

    def get_train_dataloader(self) -> DataLoader:
        """Returns the loader of `train_dataset`, shuffled anew each epoch unless the arguments say otherwise.

        An override may return any iterable of batches, such as a list.

        Raises:
            MisconfigurationException: if there is no `train_dataset`.
        """
        if self.train_dataset is None:
            raise MisconfigurationException("There is nothing to train on: give the Trainer a train_dataset.")
        return self._get_dataloader(
            dataset=self.train_dataset,
            description="Training",
            batch_size=self._train_batch_size,
            sampler_fn=self._get_train_sampler,
            is_training=True,
        )

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """Returns the loader of `eval_dataset`, in its own order unless the arguments say otherwise.

        Returns the same loader again if its workers stay alive.

        Args:
            eval_dataset: a dataset, the name of one in the dictionary that the Trainer has, or None for the Trainer's.

        Raises:
            MisconfigurationException: if there is none.
        """
        key, dataset = dataloaders.eval_dataset_named(eval_dataset, self.eval_dataset)
        make = functools.partial(
            self._get_dataloader,
            dataset=dataset,
            description="Evaluation",
            batch_size=self.args.eval_batch_size,
            sampler_fn=self._get_eval_sampler,
            dataloader_key=key,
        )
        if not self.args.dataloader_persistent_workers:
            return make()
        parts = dataset, self.data_collator, self.args.eval_batch_size
        return dataloaders.kept_or_made(self._eval_dataloaders.get(key), *parts, make, self.state.global_step)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        """Returns the loader of `test_dataset` for predictions, in the order of an evaluation."""
        return self._get_dataloader(
            dataset=test_dataset,
            description="test",
            batch_size=self.args.eval_batch_size,
            sampler_fn=self._get_eval_sampler,
        )

    def _get_dataloader(
        self,
        dataset: Any,
        description: str,
        batch_size: int,
        sampler_fn: Callable | None = None,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> DataLoader:
        """Returns the loader of `dataset`, as the arguments describe it.

        Args:
            description: names its use in messages.
            sampler_fn: gives the order of the dataset, once its unused columns are gone; not called for a stream.
            is_training: workers are given seeds, which transformers does for training only.
            dataloader_key: under which to keep the loader, if its workers stay alive.
        """
        kept, collator = dataset, self.data_collator
        if is_table(dataset):
            kept = self._remove_unused_columns(dataset, description=description)
        else:
            collator = self._get_collator_with_removed_columns(collator, description=description)
        columns = model_columns_of(self)
        with explaining_transform(columns, dataset, kept) if kept is not dataset else contextlib.nullcontext():
            loader = dataloaders.make_dataloader(
                kept, collator, self.args, batch_size, sampler_fn, is_training, self.processing_class
            )
        split = is_training and buckets_of(loader) is not None
        loader = prepare_loader(loader, self.args, self._mt_processes, whole=split or None, even=is_training)
        loader.made_for, loader.columns = dataset, columns
        if dataloader_key is not None and self.args.dataloader_persistent_workers:
            dataloaders.make_persistent(loader, self.data_collator, batch_size, self.args.seed)
            close_workers(self._eval_dataloaders.get(dataloader_key), only_idle=True)  # nothing will use them again
            self._eval_dataloaders[dataloader_key] = loader
        return loader

    def num_examples(self, dataloader: DataLoader) -> int:
        """Returns the examples in `dataloader`; estimated from its batches if its dataset has no length."""
        return num_examples(dataloader, self.args.per_device_train_batch_size)

    num_tokens = staticmethod(dataloaders.num_tokens)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler | None:
        """Returns the order of `train_dataset`, by default the Trainer's, as `args.train_sampling_strategy` says.

        A `RandomSampler` that this returns is given a seed for each epoch (see `prepare_loader`). None for a dataset
        without length.
        """
        dataset = self.train_dataset if train_dataset is None else train_dataset
        sampler = train_sampler(dataset, self.args, self._train_batch_size, self.processing_class, self._mt_processes)
        if isinstance(sampler, BucketBatchSampler):
            self._mt_length_buckets = sampler.buckets
        return sampler

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler | None:
        """Returns the dataset's own order; by length, always alike, if training is. None for one without length.

        `evaluation_loop` puts sorted examples back into the dataset's order. With `eval_do_concat_batches=False` it
        cannot, so they are not sorted.
        """
        return eval_sampler(eval_dataset, self.args, self.processing_class, functools.partial(training_buckets, self))

    def _set_signature_columns_if_needed(self) -> None:
        """Sets `_signature_columns` to the arguments of the model's forward() and the labels' names, if it is None."""
        if self._signature_columns is None:
            self._signature_columns = signature_columns(self.model, self.label_names)

    def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any:
        """Returns `dataset`, a `datasets.Dataset`, without the columns that the model does not take.

        Raises:
            ValueError: if no column is left.
        """
        if not self.args.remove_unused_columns:
            return dataset
        return without_unused_columns(dataset, model_columns_of(self), description)

    def _get_collator_with_removed_columns(self, data_collator: Callable, description: str | None = None) -> Callable:
        """Returns `data_collator`, which gets of each example, a dictionary, only what the model takes."""
        if not self.args.remove_unused_columns:
            return data_collator
        name = type(self.model).__name__
        return ColumnRemover(data_collator, columns_of(self), logger, name, description)

    # Evaluation

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Returns metrics on `eval_dataset`, and logs them; for a dictionary, the metrics of all its datasets.

        Args:
            eval_dataset: a dataset, a dictionary of datasets, or the name of one in the dictionary that the Trainer
                has. Default: what the Trainer has.
            ignore_keys: keys of the model's outputs to leave out of the predictions.
            metric_key_prefix: the beginning of the metrics' names.
        """
        trainer_checks.check_has_model(self.model)
        if isinstance(self.eval_dataset if eval_dataset is None else eval_dataset, dict):
            return evaluate_each(self, eval_dataset, metric_key_prefix, ignore_keys=ignore_keys)
        if not self.is_in_train:
            self._mt_overrides = Overrides.of(self)
        self._memory_tracker.start()
        make_loader = functools.partial(self.get_eval_dataloader, eval_dataset)
        output = evaluate_dataset(
            self,
            EvaluationParts.of(self),
            make_loader(),  # an override may choose compute_metrics here
            make_loader,
            description="Evaluation",
            prediction_loss_only=True if self.compute_metrics is None else None,  # predictions would not be used
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
        trainer_checks.check_has_model(self.model)
        if not self.is_in_train:
            self._mt_overrides = Overrides.of(self)
        self._memory_tracker.start()
        make_loader = functools.partial(self.get_test_dataloader, test_dataset)
        output = evaluate_dataset(
            self,
            EvaluationParts.of(self),
            make_loader(),
            make_loader,
            description="Prediction",
            ignore_keys=ignore_keys,
            metric_key_prefix=metric_key_prefix,
        )
        self._mt_events.fire("on_predict", metrics=output.metrics)
        self._memory_tracker.stop_and_update_metrics(output.metrics)
        return PredictionOutput(output.predictions, output.label_ids, output.metrics)

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
        skipped = unread_tokens_skipped(self.model, skips_unread_tokens(self.args))
        with self._mt_precision.applied_to(self.model), skipped:
            parts = EvaluationParts.of(self)
            return run_evaluation(self, parts, dataloader, description, loss_only, ignore_keys, metric_key_prefix)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """Returns loss, logits and labels of one batch, each None where there is none."""
        with_loss = has_loss(inputs, self.label_names, self.can_return_loss)
        items = self._get_num_items_in_batch([inputs], self.args.device) if with_loss else None
        counts = {} if items is None else {"num_items_in_batch": items}
        inputs = self._prepare_inputs(inputs)
        # before the loss is computed, which may take them out of the inputs
        labels = labels_of(inputs, self.label_names) if with_loss else None
        with torch.no_grad(), self.compute_loss_context_manager():
            if with_loss:
                if self.args.use_liger_kernel and prediction_loss_only:
                    inputs = {**inputs, "skip_logits": True}
                loss, outputs = self.compute_loss(model, inputs, return_outputs=True, **counts)
                loss = loss.detach().float().mean()
            else:
                loss, outputs = None, model(**inputs)
        if prediction_loss_only:
            return loss, None, None
        return loss, logits_of(outputs, with_loss, ignore_keys, self.model), labels

    # After a step, and at the end

    def _maybe_log_save_evaluate(
        self,
        tr_loss: Any,
        grad_norm: Any,
        model: nn.Module,
        trial: Any,
        epoch: float | None,
        ignore_keys_for_eval: list[str] | None,
        start_time: float,
        learning_rate: float | None = None,
    ) -> None:
        """Logs, evaluates and saves as the callbacks requested. `tr_loss` is the summed loss since the last log."""
        run = self._mt_run
        if self.control.should_log and run is not None and self.state.global_step > run.meter.last_read_step:
            run.log(grad_norm, learning_rate)
        if self.control.should_evaluate:
            with contextlib.nullcontext() if run is None else run.preemption.evaluating():
                metrics = self._evaluate(trial, ignore_keys_for_eval)
            is_best = self._determine_best_metric(metrics=metrics, trial=trial)
            if self.args.save_strategy == "best":
                self.control.should_save = is_best
        if self.control.should_save:
            self._save_checkpoint(model, trial)
            CheckpointSaver(self).fire_on_save()

    @property
    def _globalstep_last_logged(self) -> int:
        """The step of the last log. Overrides of `_maybe_log_save_evaluate` that log by themselves read and set it."""
        return 0 if self._mt_run is None else self._mt_run.meter.last_read_step

    @_globalstep_last_logged.setter
    def _globalstep_last_logged(self, step: int) -> None:
        if self._mt_run is not None:
            self._mt_run.meter.mark_read(step)

    @property
    def _total_loss_scalar(self) -> float:
        """The sum of the losses that were logged, to which such an override adds."""
        return 0.0 if self._mt_run is None else self._mt_run.meter.total

    @_total_loss_scalar.setter
    def _total_loss_scalar(self, total: float) -> None:
        if self._mt_run is not None:
            self._mt_run.meter.total = total

    def _evaluate(
        self, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
    ) -> dict[str, float]:
        """Evaluates at a step of a run, and steps a scheduler that depends on the metric."""
        metrics = self.evaluate(ignore_keys=ignore_keys_for_eval)
        self._report_to_hp_search(trial, self.state.global_step, metrics)
        if follows_metric(self.lr_scheduler) and not skip_scheduler:
            self.lr_scheduler.step(watched_metric(self.args, metrics, SavableLogs(self._mt_warned).number))
        return metrics

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Returns True if this evaluation is the best so far, and records its metric if it is."""
        return record_if_best(self.args, self.state, metrics, SavableLogs(self._mt_warned).number)

    def _finalize_training(self, trial: Any, num_train_samples: float, start_time: float) -> TrainOutput:
        """Ends a run after its last step: logs its metrics, loads the best weights, and calls on_train_end.

        Args:
            num_train_samples: the examples of all steps of the run, with those before a resume.
        """
        assert self._mt_run is not None
        metrics = self._mt_run.metrics(num_train_samples, start_time)
        self._memory_tracker.stop_and_update_metrics(metrics)
        self.log(metrics)
        if self.args.load_best_model_at_end:
            self._load_best_model()
        self._mt_checkpoints.keep_only_best(self.state, self.args)
        self._mt_events.fire("on_train_end")
        self._finish_current_push()
        self._mt_checkpoints.require_saved()
        return TrainOutput(self.state.global_step, metrics["train_loss"], metrics)

    # Models and checkpoints

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Writes weights (safetensors), configuration, tokenizer and arguments to `output_dir`, or the run's.

        Uploads them with `push_to_hub=True`, unless it is a part of a checkpoint. A sharded model is gathered for it,
        so that all processes have to call it.
        """
        trainer_checks.check_has_model(self.model)
        weights = self._mt_checkpoints.full_weights(self.model, keep=self.args.should_save)
        options = {} if weights is None else {"state_dict": weights}
        self._save(self.args.output_dir if output_dir is None else output_dir, **options)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Writes the files of `save_model`; with `state_dict`, those weights instead of the model's."""
        if self.args.should_save:
            folder = self.args.output_dir if output_dir is None else output_dir
            processor = writers.processor_to_save(self.processing_class, self.data_collator)
            writers.write_model_files(self.model, processor, self.args, folder, state_dict)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Loads a checkpoint's weights, or PEFT adapters, into `model`, by default the Trainer's."""
        loading.load_weights(self.model if model is None else model, resume_from_checkpoint)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Warns of keys that are missing or unexpected. A subclass that loads weights itself calls it."""
        loading.warn_of_keys(self.model, load_result)

    def _load_best_model(self) -> None:
        """Loads the weights of the best checkpoint. Warns if the best evaluation has no checkpoint."""
        self._mt_checkpoints.load_best(self.model, self.state, self._mt_processes)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Writes `checkpoint-<step>` into the run's folder and removes those beyond the limit.

        The files are written in the background where that is safe, from copies and not by `save_model` and the like.
        If writing fails, training continues, and `train` raises CheckpointError at its end if that was the last one.
        """
        self.store_flos()
        run_dir = self._get_output_dir(trial)
        if self._mt_run is None and os.path.abspath(run_dir) != self._mt_checkpoints.run_dir:  # saved by hand
            self._mt_checkpoints = Checkpoints(run_dir)
        CheckpointSaver(self).write()

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Writes `optimizer.pt` and `scheduler.pt`."""
        stateful = {OPTIMIZER: self.optimizer, SCHEDULER: self.lr_scheduler}
        self._mt_checkpoints.write_stateful(stateful, output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Loads optimizer and schedule from a checkpoint, as far as it has them; nothing without one."""
        if checkpoint is not None:
            loading.load_state_dicts({OPTIMIZER: self.optimizer, SCHEDULER: self.lr_scheduler}, checkpoint)

    def _save_scaler(self, output_dir: str) -> None:
        """Writes `scaler.pt`, with float16 only."""
        if (scaler := self._mt_precision.scaler) is not None:
            self._mt_checkpoints.write_stateful({SCALER: scaler}, output_dir)

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Loads the gradient scaler of float16 from a checkpoint; nothing without one."""
        if (scaler := self._mt_precision.scaler) is not None and checkpoint is not None:
            loading.load_state_dicts({SCALER: scaler}, checkpoint)

    def _save_rng_state(self, output_dir: str) -> None:
        """Writes the state of each process's random number generators."""
        own = rng_state() if self._mt_run is None else self._mt_run.position.rng_state()
        self._mt_checkpoints.write_rng(own, output_dir, self._mt_processes)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Sets the generators, if the checkpoint has their states. A run calls it only if it is overridden."""
        processes = self._mt_processes
        state = None if checkpoint is None else read_rng(checkpoint, processes.rank, processes.size)
        if state is not None:
            set_rng(state)

    def _load_callback_state(self) -> None:
        """Restores the callbacks from `state.stateful_callbacks`, if the arguments ask for it or after a restart."""
        is_restarted = self._mt_supervised is not None and self._mt_supervised.is_restarted
        if self.args.restore_callback_states_from_checkpoint or is_restarted:
            load_callbacks(self)

    def _rotate_checkpoints(self, use_mtime: bool = False, output_dir: str | None = None) -> None:
        """Removes an overwritten run's checkpoints, now that there is one of this run, and those beyond the limit.

        Args:
            use_mtime: ignored. Checkpoints of earlier runs are known, and the others are ordered by step.
            output_dir: default the run's folder.
        """
        self._mt_checkpoints.rotate(self.state, self.args, self._mt_run is not None, output_dir)

    # The hub

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Creates the repository if there is none yet: `args.hub_model_id`, or the output folder's name.

        Args:
            token: default `args.hub_token`.
            private: default `args.hub_private_repo`. An existing repository is not changed.

        Raises:
            MisconfigurationException: if the hub refuses the token or the name.
        """
        if self.is_world_process_zero():
            self.hub_model_id = upload.create_repository(self.args, token, private)
            self.push_in_progress = None

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
    ) -> None:
        """Writes the model card `README.md` into the output folder.

        transformers' card, with the data, the device and why, the precision and more versions. Everything is optional.
        The tags of an existing card are kept, and so is PEFT's card. A card that a person wrote or changed is kept as
        `README.before.md`.
        """
        model = {"language": language, "license": license, "tags": tags, "model_name": model_name}
        origin = {"finetuned_from": finetuned_from, "tasks": tasks}
        data = {"dataset_tags": dataset_tags, "dataset": dataset, "dataset_args": dataset_args}
        if self.is_world_process_zero():
            card.write(self, {**model, **origin, **data})

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Saves the model, writes its card and uploads the output folder without its checkpoints.

        Args:
            blocking: wait for the upload; False gives a Future of it.
            token, revision, private: default `args.hub_token`, `args.hub_revision`, `args.hub_private_repo`.
            kwargs: for `create_model_card`.

        Returns:
            huggingface_hub's CommitInfo, or a Future of one; None in processes other than the main one.
        """
        self._mt_events.fire("on_push_begin")
        token = self.args.hub_token if token is None else token
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        self.create_model_card(**card.settings_for_upload(kwargs, self.args, self.model))
        self._finish_current_push()
        return upload.upload_folder(self, commit_message, blocking, token, revision)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Uploads what `args.hub_strategy` asks for at a save, in the background.

        Skips the upload while the previous one is running, unless `args.hub_always_push`. A failed upload is a
        warning, because the checkpoint is on disk.
        """
        if self.is_world_process_zero():
            upload.push_checkpoint(self, checkpoint_folder)

    def _finish_current_push(self) -> None:
        """Waits for the running uploads and warns about failed ones."""
        upload.warn_of_failures(self, wait=True)
        self.push_in_progress = None

    # The search for hyper-parameters

    def hyperparameter_search(
        self,
        hp_space: Callable[[Any], dict[str, Any]] | None = None,
        compute_objective: Callable[[dict[str, float]], Any] | None = None,
        n_trials: int = 20,
        direction: str | list[str] = "minimize",
        backend: Any = None,
        hp_name: Callable[[Any], str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Trains `n_trials` times with other arguments each time; returns the best run (`BestRun`).

        Args:
            hp_space: `trial -> {field of the arguments: value}`. Default: transformers' for the back end.
            compute_objective: `metrics -> number`, or numbers if `direction` is a list. Default: the evaluation loss,
                or the sum of all other metrics if there are any.
            direction: "minimize" or "maximize"; a list of them gives the list of the best runs.
            backend: "optuna", "ray" or "wandb". Default: the first of them that is installed.
            hp_name: `trial -> name` of the trial's folder in `output_dir`. Default: `run-<number>`.
            kwargs: for the back end, such as optuna's `sampler`, `pruner`, `timeout` and `catch`.

        Raises:
            SearchUnavailableError: without a `model_init`.
            SearchUnavailableError: if the back end is not installed; says what to install.
        """
        chosen, runner = search.available_backend(backend)
        search.require_searchable(self.model_init, self._mt_processes)
        self.hp_space = runner.default_hp_space if hp_space is None else hp_space
        self.hp_name = hp_name
        self.compute_objective = default_compute_objective if compute_objective is None else compute_objective
        self.hp_search_backend, begun = chosen, time.time()
        try:
            return runner.run(self, n_trials, direction, **kwargs)
        finally:
            self.hp_search_backend = None
            if self.args.writes_report:
                compare_trials(self.args.output_dir, begun)

    def _hp_search_setup(self, trial: Any) -> None:
        """Sets the arguments that the trial chose, cast to the types of the values that they replace."""
        self._trial = trial
        if self.hp_search_backend is not None and trial is not None:
            search.set_arguments(self.args, trial, self.hp_search_backend.value, self.hp_space)

    def _report_to_hp_search(self, trial: Any, step: int, metrics: dict[str, float]) -> None:
        """Reports the metrics of a trial to the search. Raises optuna.TrialPruned if the trial is to end."""
        if self.hp_search_backend is None or trial is None:
            return
        metrics = dict(metrics)
        self.objective = self.compute_objective(metrics)
        if self.hp_search_backend.value == "optuna":
            search.report_to_optuna(trial, self.objective, step, lambda: self._mt_events.fire("on_train_end"))
        elif self.hp_search_backend.value == "ray":
            save = self._tune_save_checkpoint if self.control.should_save else None
            search.report_to_ray({**metrics, "objective": self.objective}, save)

    def _tune_save_checkpoint(self, checkpoint_dir: str) -> None:
        """Writes what Ray Tune needs to resume a trial into a folder of its own in `checkpoint_dir`."""
        folder = folders.checkpoint_folder(checkpoint_dir, self.state.global_step)
        self.save_model(folder, _internal_call=True)
        if self.args.should_save:
            self.state.stateful_callbacks["TrainerControl"] = self.control.state()
            self._mt_checkpoints.write_trainer_state(self.state, folder)
            stateful = {OPTIMIZER: self.optimizer, SCHEDULER: self.lr_scheduler}
            self._mt_checkpoints.write_stateful(stateful, folder)

    def _get_output_dir(self, trial: Any) -> str:
        """Returns the folder for checkpoints: `args.output_dir`, or in a search a folder of the trial's own in it."""
        output_dir = self.args.output_dir
        if self.hp_search_backend is None or trial is None:
            return output_dir
        return os.path.join(output_dir, search.folder_name(trial, self.hp_search_backend.value, self.hp_name))

    # Events

    @property
    def _mt_events(self) -> Events:
        return Events(self)

    def add_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        """Adds a callback, or one of the class, after the others."""
        self.callback_handler.add_callback(callback)
        call_first_who_add_to_logs(self.callback_handler.callbacks)

    def pop_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> TrainerCallback | None:
        """Removes and returns the callback, or the first of the class; None if there is none."""
        return self.callback_handler.pop_callback(callback)

    def remove_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        """Removes the callback, or the first of the class."""
        self.callback_handler.remove_callback(callback)

    # Logs and processes

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds `logs`, with epoch and step, to the history and tells the callbacks."""
        if self.state.epoch is not None:
            logs["epoch"] = self.state.epoch
        if self.args.include_num_input_tokens_seen != "no":
            seen = self.state.num_input_tokens_seen
            logs["num_input_tokens_seen"] = seen
            if start_time is not None:
                before = 0 if self._mt_run is None else self._mt_run.tokens_at_start
                logs.update(speed_metrics("train", start_time, num_tokens=seen - before))
        self.state.log_history.append({**SavableLogs(self._mt_warned).of(logs), "step": self.state.global_step})
        self._mt_events.fire("on_log", logs=logs)

    save_state = save_state
    metrics_format = staticmethod(metrics_format)

    def log_metrics(self, split: str, metrics: dict[str, Any]) -> None:
        """Prints metrics as a table in the first process."""
        shown = {name: plain(value) for name, value in metrics.items()}
        log_metrics(self, split, {name: as_cell(value) for name, value in shown.items()})

    def save_metrics(self, split: str, metrics: dict[str, Any], combined: bool = True) -> None:
        """Writes `<split>_results.json`, and all_results.json if `combined`, without what JSON cannot hold."""
        save_metrics(self, split, SavableLogs(self._mt_warned).of(metrics), combined)

    @functools.cached_property
    def _mt_warned(self) -> set[str]:
        """The warnings about metrics that this Trainer has given; it gives each once."""
        return set()

    def is_local_process_zero(self) -> bool:
        """Returns True in the first process of each machine."""
        return self.args.local_process_index == 0

    def is_world_process_zero(self) -> bool:
        """Returns True in the first process of all."""
        return self.args.process_index == 0


# `Overrides` compares methods with these, because a library may patch the class later
Trainer._mt_methods = {name: getattr(Trainer, name) for name in vars(Trainer)}
