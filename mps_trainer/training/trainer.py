"""`Trainer`: the public face. It holds the parts of a run; each part's work is in a module of its own."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers.training_args  # noqa: F401 - the enums that the arguments take their members from
from torch import nn
from transformers.trainer_callback import CallbackHandler, TrainerCallback, TrainerControl
from transformers.trainer_pt_utils import LabelSmoother
from transformers.trainer_utils import (
    EvalPrediction,
    TrainerMemoryTracker,
    TrainOutput,
    enable_full_determinism,
    set_seed,
)
from transformers.utils import logging as transformers_logging
from transformers.utils.generic import can_return_loss, find_labels

from ..arguments.deprecated import DROPPED_IN
from ..arguments.sharding import SHARDED
from ..callbacks import (
    call_first_who_add_to_logs,
    close_display,
    default_callbacks,
    display_callback,
    jit_checkpoint,
    report_callback,
    reports_among,
)
from ..checkpoints import folders
from ..checkpoints.background import Background
from ..data.faults import refuse_in_starting_process
from ..data.transfer import BatchTransfer
from ..distributed import Processes, absent_named
from ..distributed.folder import only_run_of_all_in, require_shared
from ..errors import MisconfigurationException
from ..guards.exhausted import PLACING, TRAINING, explained
from ..guards.growth import make_guard
from ..terminal import lost_output_ignored
from ..training_args import TrainingArguments
from . import model_files, validation
from .accelerator import Accelerator
from .adamw import total_norm
from .after_step import AfterStep
from .counts import Counts
from .fitting import sizes_to_begin_with
from .hub import Hub
from .introspection import accepts_loss_kwargs, base_model, require_trainable, spans_devices
from .items import ItemsUse
from .loop import TrainingLoop
from .masks import AttentionMasks
from .optimization import Optimization
from .precision import MixedPrecision, set_tf32
from .preparation import prepared_for_training
from .replicas import inside, replicated
from .saving import Saving
from .search import Search
from .shards import sharded
from .shards import total_norm as norm_of_shards

logger = logging.getLogger(__name__)


class Trainer(AfterStep, Counts, Optimization, Saving, Hub, Search):
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
        self.args = args = args or TrainingArguments(output_dir="tmp_trainer")
        args.use_transformers_choices()
        self.processes = Processes.of(args)
        self.is_fsdp_enabled = bool(args.fsdp)
        self._seed()
        self._memory_tracker = TrainerMemoryTracker(args.skip_memory_metrics)
        self._memory_tracker.start()
        _set_log_level(args)
        self.processing_class = _processing_class(processing_class, tokenizer)
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.model_init = model_init
        self.compute_loss_func = compute_loss_func
        self.compute_metrics = compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.optimizer, self.lr_scheduler = optimizers
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        self.neftune_noise_alpha = args.neftune_noise_alpha
        self.data_collator: Any = data_collator
        validation.check(self, model)

        self._settle_accumulation()
        set_tf32(args.device, args.tf32)
        self.memory_guard = make_guard(args)
        self._train_batch_size = args.train_batch_size
        self.use_precision(MixedPrecision(args.device, args.mixed_precision))
        self.transfer, self.attention_masks = BatchTransfer(args.device), AttentionMasks(args.device)
        self.is_in_train = False
        self.earlier_checkpoints: set[str] = set()  # in the output folder, of a run before this one
        self._use_model(model if model is not None else self.call_model_init())
        self.label_smoother = self._label_smoother()
        self.data_collator = self.data_collator or _default_collator(self.processing_class)

        own = [*default_callbacks(args), *jit_checkpoint(self), *report_callback(args)]
        added = [*own, *(callbacks or []), display_callback(args)]
        self.callback_handler = CallbackHandler(
            added, self.model, self.processing_class, self.optimizer, self.lr_scheduler
        )
        call_first_who_add_to_logs(self.callback_handler.callbacks)
        if args.push_to_hub:
            self.init_hf_repo()
        if args.should_save:
            model_files.make_folder(args.output_dir)
        self.control = TrainerControl()
        self.state = self.new_state()
        self.fire("on_init_end")
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
        if self.train_dataset is None and type(self).get_train_dataloader is Trainer.get_train_dataloader:
            raise MisconfigurationException("There is nothing to train on: give the Trainer a train_dataset.")
        self.ignore_keys_for_eval = ignore_keys_for_eval
        if self.model_init is not None:
            self._seed()
            self._use_model(self.call_model_init(trial))
        self._hp_search_setup(trial)
        self.args.output_dir = os.path.abspath(self.args.output_dir)  # a callback may change the working folder
        model_files.make_folder(self.args.output_dir)
        with absent_named(self._what_comes), self._own_output_folder(trial) as run_dir:
            resume_from = self.processes.first_does(
                lambda: folders.checkpoint_to_resume(resume_from_checkpoint, run_dir)
            )
            self.renew_schedule(new_model=self.model_init is not None)
            self._train_batch_size, self.examples_at_a_time = sizes_to_begin_with(self, resume_from)
            for report in reports_among(self.callback_handler.callbacks):
                batch, whole = self.get_total_train_batch_size(self.args), run_dir == self.args.output_dir
                report.expect(run_dir, resume_from, batch, draws=whole)
            with absent_named(self._what_comes), explained(self, TRAINING), prepared_for_training(self):
                return TrainingLoop(self, resume_from, trial).run()

    def _what_comes(self) -> str:
        if self.loop is None:
            return "the begin of training"
        step = self.state.global_step
        return f"step {step + 1}" if step < self.state.max_steps else "the end of training"

    @contextlib.contextmanager
    def _own_output_folder(self, trial: Any) -> Iterator[str]:
        """Inside, no other process trains into the run's folder, and nothing half written is in it."""
        run_dir = self._get_output_dir(trial)
        if (why := self._why_one_folder()) is not None:
            require_shared(run_dir, self.processes, why)
        with only_run_of_all_in(self.args.output_dir, self.processes, self.args.should_save):
            if self.args.should_save:
                Background.settle()
                folders.clear_left_overs(run_dir)
            self.checkpoint_manager.forget()
            self.is_in_train = True
            try:
                yield run_dir
                self._end_reports(None)
            except BaseException as error:
                draws = getattr(self.loop, "draws", None)  # the loop may be half made
                if draws is not None and isinstance(error, RuntimeError):
                    draws.explain(error)
                if draws is not None:
                    draws.close()
                close_display(self.callback_handler.callbacks)
                if not isinstance(error, KeyboardInterrupt):  # which is not to wait
                    with contextlib.suppress(Exception):
                        self.finish_save()
                self._end_reports(error)
                raise
            finally:
                if (draws := getattr(self.loop, "draws", None)) is not None:
                    draws.close()  # a run may end within an epoch; its workers would be killed when Python exits
                loader, self.loop, self.is_in_train = getattr(self.loop, "loader", None), None, False
                self._close_workers(loader)

    def _why_one_folder(self) -> str | None:
        """Why all processes have to see one output folder; None if they need not."""
        config: Any = self.args.fsdp_config
        if self.is_fsdp_enabled and config.get("state_dict_type") == SHARDED:
            return "each writes its part of a checkpoint there"
        if self.args.load_best_model_at_end and not self.args.save_on_each_node:
            return "load_best_model_at_end=True has all of them read the best checkpoint"
        return None

    def _end_reports(self, error: BaseException | None) -> None:
        for report in reports_among(self.callback_handler.callbacks):
            report.end(error)

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        """The model as the loops call it: compiled, if the arguments say so; one of several replicas, in training.

        A sharded one is itself, from the first call on.
        """
        if self.is_fsdp_enabled:
            return sharded(model, self.args, self.processes)
        compiled = self._compiled(model)
        if not training or not self.processes.are_several:
            return compiled
        wrapped = self.model_wrapped
        return wrapped if inside(wrapped) is compiled and wrapped is not compiled else replicated(compiled, self.args)

    def _compiled(self, model: nn.Module) -> nn.Module:
        if not self.args.torch_compile:
            return model
        if getattr(inside(self.model_wrapped), "_orig_mod", None) is model:
            return inside(self.model_wrapped)
        backend, mode = self.args.torch_compile_backend or "inductor", self.args.torch_compile_mode
        try:
            compiled: Any = torch.compile(model, backend=backend, mode=mode)
        except RuntimeError as error:  # no such mode, no such backend
            raise MisconfigurationException(
                f"torch_compile_backend={backend!r} with torch_compile_mode={mode!r} cannot be used: {error} Leave "
                "out what torch.compile does not know."
            ) from error
        return compiled

    def get_total_train_batch_size(self, args: TrainingArguments) -> int:
        """Examples in an optimizer step of all processes."""
        return self._train_batch_size * args.gradient_accumulation_steps * args.world_size

    def _clip_grad_norm(self, model: nn.Module) -> torch.Tensor:
        """Clips the gradients to `args.max_grad_norm`; their norm before that, on the device.

        Where nobody looks at them in between, the optimizer's step does it: see `Gradients`.
        """
        if self.loop is not None and model is self.loop.model:
            norm = self.loop.gradients.clip_at_step(self.args.max_grad_norm)
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

    def _settle_accumulation(self) -> None:
        """`num_steps` among the settings of accumulation stands for `gradient_accumulation_steps`."""
        args = self.args
        config: Any = args.accelerator_config
        steps = (config.gradient_accumulation_kwargs or {}).get("num_steps")
        if steps is None:
            return
        if args.gradient_accumulation_steps > 1:
            raise MisconfigurationException(
                "The `AcceleratorConfig`'s `num_steps` is set but `gradient_accumulation_steps` is greater than 1: "
                "both say how many batches make an update. Leave one of them out."
            )
        args.gradient_accumulation_steps = steps

    def use_precision(self, precision: MixedPrecision) -> None:
        """Computes in this format from now on."""
        self.precision = precision
        self.accelerator = Accelerator(self.args, precision, prepare_loader=self.prepare_loader)
        self.gather_function = self.accelerator.gather_for_metrics

    def _seed(self) -> None:
        if self.args.full_determinism:
            enable_full_determinism(self.args.seed)
        else:
            set_seed(self.args.seed)

    def _use_model(self, model: nn.Module) -> None:
        args, base = self.args, base_model(model)
        require_trainable(model)
        asked = args.place_model_on_device
        full_eval = args.fp16_full_eval or args.bf16_full_eval  # moves the model itself, in another format
        bitsandbytes = getattr(model, "quantization_method", None) == "bitsandbytes"  # has no .to()
        self.is_model_parallel = spans_devices(model)
        elsewhere = full_eval or self.is_model_parallel or self.is_fsdp_enabled  # which brings it there block by block
        self.place_model_on_device = not elsewhere if asked is None else asked
        if self.place_model_on_device and not bitsandbytes:
            with explained(self, PLACING):
                self._move_model_to_device(model, args.device)
        self.model = self.model_wrapped = model
        self._flos_per_token = None
        self.label_names = find_labels(type(base)) if args.label_names is None else args.label_names
        self.can_return_loss = can_return_loss(type(base))
        self.model_accepts_loss_kwargs = accepts_loss_kwargs(model)
        self.items_use = ItemsUse(model)
        self._signature_columns = None
        config: Any = getattr(model, "config", None)
        if config is not None:
            config.use_cache = args.use_cache

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        model.to(device)

    def _label_smoother(self) -> LabelSmoother | None:
        if not self.args.label_smoothing_factor:
            return None
        if getattr(getattr(self.model, "config", None), "problem_type", None) == "multi_label_classification":
            warnings.warn(
                "Label smoothing is not compatible with multi-label classification, which the model's config asks: "
                "it spreads the probability of the one right label. label_smoothing_factor is left out.",
                UserWarning,
                stacklevel=3,
            )
            return None
        return LabelSmoother(self.args.label_smoothing_factor)


def _set_log_level(args: TrainingArguments) -> None:
    """The level of transformers' loggers, and of this package's if log_level names one."""
    level = args.get_process_log_level()
    transformers_logging.set_verbosity(level)
    if args.log_level != "passive":
        logging.getLogger(__package__.partition(".")[0]).setLevel(level)


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
    from transformers import PreTrainedTokenizerBase, SequenceFeatureExtractor
    from transformers.data.data_collator import DataCollatorWithPadding, default_data_collator

    # image processors have a pad() as well, which is not for batches
    pads = isinstance(processing_class, (PreTrainedTokenizerBase, SequenceFeatureExtractor))
    return DataCollatorWithPadding(processing_class) if pads else default_data_collator
