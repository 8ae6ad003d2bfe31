"""`Trainer`: the public face. It holds the parts of a run; each part's work is in a module of its own."""

from __future__ import annotations

import inspect
import logging
import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers.trainer_callback import CallbackHandler, TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_pt_utils import LabelSmoother
from transformers.trainer_utils import EvalPrediction, TrainOutput, enable_full_determinism, set_seed
from transformers.utils.generic import can_return_loss, find_labels

from .. import distributed
from ..arguments.deprecated import DROPPED_IN
from ..callbacks import default_callbacks, display_callback
from ..errors import MisconfigurationException
from ..training_args import TrainingArguments
from . import folders, model_files
from . import optimizer as optimizers_
from .activation_checkpointing import enable_activation_checkpointing
from .evaluation import Evaluation
from .files import read_object
from .flos import FlosCounter
from .loop import TrainingLoop
from .precision import MixedPrecision

logger = logging.getLogger(__name__)


class Trainer(Evaluation):
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
        self.args = args = args or TrainingArguments()
        self.processing_class = _processing_class(processing_class, tokenizer)
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.model_init = model_init
        self.compute_loss_func = compute_loss_func
        self.compute_metrics = compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self._given_optimizers = self.optimizer, self.lr_scheduler = optimizers
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        self._check(model)

        self._train_batch_size = args.train_batch_size
        self.precision = MixedPrecision(args.device, bf16=args.bf16, fp16=args.fp16)
        self.label_smoother = LabelSmoother(args.label_smoothing_factor) if args.label_smoothing_factor else None
        self.loss_divisor = 1.0  # set by the loop for each batch of an update
        self.loss_is_scaled_for_ga: bool | None = None  # True in a subclass whose compute_loss normalises by itself
        self.is_in_train = False
        self.loop: TrainingLoop | None = None  # while training
        self._seed()
        self._use_model(model if model is not None else self._call_model_init())
        self.data_collator = data_collator or _default_collator(self.processing_class)

        added = [*default_callbacks(args), *(callbacks or []), display_callback(args)]
        self.callback_handler = CallbackHandler(
            added, self.model, self.processing_class, self.optimizer, self.lr_scheduler
        )
        self.control = TrainerControl()
        self.state = self.new_state()
        self.fire("on_init_end")

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Trains the model.

        Args:
            resume_from_checkpoint: a checkpoint folder, or True for the newest in `args.output_dir`.
            trial: must be None; there is no search for hyper-parameters yet.
            ignore_keys_for_eval: keys of the model's outputs to leave out of predictions in evaluations.

        Raises:
            MisconfigurationException: if there is nothing to train on or the checkpoint does not fit.
        """
        if trial is not None:
            raise MisconfigurationException("trial is not supported: there is no hyper-parameter search yet.")
        if self.train_dataset is None and type(self).get_train_dataloader is Trainer.get_train_dataloader:
            raise MisconfigurationException("There is nothing to train on: give the Trainer a train_dataset.")
        resume_from = folders.checkpoint_to_resume(resume_from_checkpoint, self.args.output_dir)
        self.ignore_keys_for_eval = ignore_keys_for_eval
        if self.model_init is not None:
            self._seed()
            self._use_model(self._call_model_init())
        self.optimizer, self.lr_scheduler = self._given_optimizers
        if self.args.activation_checkpointing:
            enable_activation_checkpointing(self.model, self.args)
        model_files.make_folder(self.args.output_dir)
        self.is_in_train = True
        try:
            self.model.train()
            self.loop = TrainingLoop(self, resume_from)
            return self.loop.run()
        finally:
            self.loop = None
            self.is_in_train = False

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: int | None = None
    ) -> torch.Tensor:
        """Forward and backward for one batch; returns what it adds to the update's loss, detached, on the device."""
        if not model.training:
            model.train()
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        scaled = self.loss_is_scaled_for_ga
        if scaled is None:
            scaled = self.compute_loss_func is not None and num_items_in_batch is not None
        if not scaled and self.loss_divisor != 1:
            loss = loss / self.loss_divisor
        self.precision.backward(loss)
        return loss.detach()

    # Optimizer and schedule

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        self.create_optimizer()
        self.create_scheduler(num_training_steps)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """The optimizer that was given to the Trainer, or the one that the arguments describe."""
        if self.optimizer is None:
            model = self.model if model is None else model
            decay = self.get_decay_parameter_names(model)
            groups = optimizers_.parameter_groups(model, decay, self.args.weight_decay)
            kind, settings = self.optimizer_cls_and_kwargs or optimizers_.class_and_settings(self.args)
            self.optimizer = kind(groups, **settings)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """The schedule that was given to the Trainer, or the one that the arguments describe."""
        if self.lr_scheduler is None:
            self.lr_scheduler = optimizers_.make_scheduler(self.args, optimizer or self.optimizer, num_training_steps)
        return self.lr_scheduler

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        return optimizers_.decay_parameter_names(model)

    # Saving

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Writes weights (safetensors), configuration, tokenizer and arguments to `output_dir`, or the run's."""
        if self.args.should_save:
            model_files.save(self.model, self.processing_class, self.args, output_dir or self.args.output_dir)

    def load_best_model(self) -> None:
        """Goes back to the weights of the best checkpoint; says so if the best evaluation has none."""
        if self.state.best_model_checkpoint is None:
            logger.warning(
                "load_best_model_at_end: the best evaluation, at step %s, has no checkpoint: the last weights stay. "
                "Give save_steps the value of eval_steps, or use save_strategy='best'.",
                self.state.best_global_step,
            )
        else:
            model_files.load_weights(self.model, self.state.best_model_checkpoint)

    # For the loop

    def begin_state(self, max_steps: int, epochs: int, resume_from: str | None) -> None:
        """Makes `state` that of a run about to begin, or of the checkpoint it goes on from."""
        state = self.new_state()
        if resume_from is not None:
            saved = read_object(os.path.join(resume_from, folders.STATE), ["global_step", "epoch", "log_history"])
            known = {name: value for name, value in saved.items() if hasattr(state, name)}
            state = TrainerState(**{**known, "stateful_callbacks": state.stateful_callbacks})
        self.earlier_checkpoints = set() if resume_from else set(folders.find_checkpoints(self.args.output_dir))
        state.max_steps, state.num_train_epochs = max_steps, epochs
        state.is_local_process_zero = self.is_local_process_zero()
        state.is_world_process_zero = self.is_world_process_zero()
        state.train_batch_size = self.args.train_batch_size
        state.compute_steps(self.args, max_steps)
        self.state = state
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))

    @property
    def _computes_loss_itself(self) -> bool:
        return super()._computes_loss_itself or type(self).training_step is not Trainer.training_step

    def count_flos(self, batch: Any) -> None:
        self._flos.add(batch)

    def store_flos(self) -> None:
        self.state.total_flos += self._flos.take()

    # Making

    def _check(self, model: nn.Module | None) -> None:
        args = self.args
        if (model is None) == (self.model_init is None):
            raise MisconfigurationException("The Trainer needs a model or a model_init, one of the two.")
        distributed.require_one_process(args.world_size)
        if args.load_best_model_at_end and hasattr(model, "peft_config"):
            raise MisconfigurationException(
                "load_best_model_at_end=True, and the model has PEFT adapters, whose checkpoints this release writes "
                "and cannot load. Leave load_best_model_at_end out, and load the adapters with PEFT."
            )
        has_own_loader = type(self).get_eval_dataloader is not Trainer.get_eval_dataloader
        if args.eval_strategy != "no" and self.eval_dataset is None and not has_own_loader:
            raise MisconfigurationException(
                f"eval_strategy='{args.eval_strategy}', but there is no eval_dataset. Give the Trainer one, or "
                "set eval_strategy='no'."
            )

    def _seed(self) -> None:
        if self.args.full_determinism:
            enable_full_determinism(self.args.seed)
        else:
            set_seed(self.args.seed)

    def _call_model_init(self) -> nn.Module:
        assert self.model_init is not None
        required = [p for p in inspect.signature(self.model_init).parameters.values() if p.default is p.empty]
        return self.model_init(None) if required else self.model_init()  # None: the trial of no search

    def _use_model(self, model: nn.Module) -> None:
        self.model = self.model_wrapped = model.to(self.args.device)
        self._flos = FlosCounter(model)
        self.label_names = find_labels(type(model)) if self.args.label_names is None else self.args.label_names
        self.can_return_loss = can_return_loss(type(model))
        self._signature_columns = None


def _processing_class(processing_class: Any, tokenizer: Any) -> Any:
    if tokenizer is None:
        return processing_class
    warnings.warn(
        f"`Trainer(tokenizer=...)` is deprecated and will be removed in mps_trainer {DROPPED_IN}. "
        "Use `processing_class`.",
        FutureWarning,
        stacklevel=3,
    )
    if processing_class is not None and processing_class is not tokenizer:
        raise MisconfigurationException("tokenizer and processing_class are the same argument: give the latter only.")
    return tokenizer


def _default_collator(processing_class: Any) -> Callable:
    from transformers.data.data_collator import DataCollatorWithPadding, default_data_collator

    return DataCollatorWithPadding(processing_class) if hasattr(processing_class, "pad") else default_data_collator
