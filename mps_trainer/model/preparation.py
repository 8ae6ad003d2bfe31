"""Prepares the model for a run and removes temporary changes at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import nn
from transformers.integrations.neftune import neftune_post_forward_hook

from ..devices.facts import apple_chip, macos
from ..distributed import Processes
from ..errors import MisconfigurationException
from ..overrides import LOSS_WITHOUT_LOGITS, Overrides
from ..training_args import TrainingArguments
from ..utils.attributes import attributes_replaced
from .activation_checkpointing import checkpointing_restored, enable_activation_checkpointing
from .adapters import check_sparse_adapters
from .attention_patching import attention_chunked, shortest_chunked
from .introspection import base_model
from .large_product_warning import told_of_large_products
from .padding_free import PaddingPlan, masks_of_rows_dropped, plan_padding
from .patches.contiguous import make_contiguous, warn_of_known_faults
from .patches.deferred_logits import deferring_head, has_large_logits, logits_deferred
from .patches.norms import norms_in_few_kernels
from .patches.positions import positions_made_once
from .patches.rotary import rotations_in_few_kernels
from .patches.unpadded_encoders import encoders_unpadded
from .patches.unread_tokens import unread_tokens_skipped
from .patches.vector_weights import vector_weights_as_matrices
from .precision import MixedPrecision


class PreparedTrainer(Protocol):
    """Names what the preparation of a model for training uses of a Trainer."""

    args: TrainingArguments
    model: Any
    optimizer: Any
    processing_class: Any
    compute_loss_func: Any
    label_smoother: Any
    neftune_noise_alpha: float | None
    _mt_overrides: Overrides
    _mt_precision: MixedPrecision
    _mt_processes: Processes

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None: ...


@contextlib.contextmanager
def prepared_for_training(trainer: PreparedTrainer) -> Iterator[PaddingPlan]:
    """Prepares the model as the arguments ask and patches it for `args.device` inside.

    Yields how the run leaves out padding. Afterwards the model has the hooks that it had before and those that other
    code has added meanwhile, and it recomputes activations as it did before.
    """
    model, args = trainer.model, trainer.args
    with contextlib.ExitStack() as stack:
        if args.activation_checkpointing:
            stack.enter_context(checkpointing_restored(model))
        before = _forward_hooks(model)
        try:
            prepare_model(trainer)
        finally:
            for module, key in _forward_hooks(model) - before:
                stack.callback(module._forward_hooks.pop, key, None)
        yield stack.enter_context(model_patched(trainer, args.device))


def _forward_hooks(model: nn.Module) -> set[tuple[nn.Module, int]]:
    """Returns each forward hook of a module of `model`, by its key; transformers does not return their handles."""
    return {(module, key) for module in model.modules() for key in module._forward_hooks}


def prepare_model(trainer: PreparedTrainer) -> None:
    """Changes the model as the arguments ask, and puts it in training mode."""
    model, args = trainer.model, trainer.args
    if args.use_liger_kernel:
        _use_liger_kernels(model, args.liger_kernel_config)
    if args.fp16_full_eval or args.bf16_full_eval:
        trainer._move_model_to_device(model, args.device)  # left where it was when the Trainer was made
    if args.activation_checkpointing:
        enable_activation_checkpointing(model, args)
    _align_special_tokens(model, trainer.processing_class)
    if args.device.type == "mps":
        check_sparse_adapters(model, args.device)
        warn_of_known_faults(macos(), apple_chip())
        make_contiguous(model, trainer.optimizer)
    if "underflow_overflow" in args.debug:
        from transformers.debug_utils import DebugUnderflowOverflow

        DebugUnderflowOverflow(model)
    model.train()


@contextlib.contextmanager
def model_patched(trainer: PreparedTrainer, device: torch.device) -> Iterator[PaddingPlan]:
    """Inside, the model has hooks and functions for training on `device`. Yields how the run leaves out padding."""
    model, args = trainer.model, trainer.args
    is_distributed = trainer._mt_processes.is_distributed
    model_computes_loss = trainer.compute_loss_func is None and trainer.label_smoother is None
    head = deferring_head(model, args, is_distributed)
    if head is None or not has_large_logits(head) or not model_computes_loss:
        trainer._mt_overrides = trainer._mt_overrides.without(LOSS_WITHOUT_LOGITS)
    defers = model_computes_loss and not trainer._mt_overrides.compute_loss
    few_kernels = device.type == "mps" and not args.torch_compile
    padding = plan_padding(trainer, device)
    with (
        noisy_embeddings(model, trainer.neftune_noise_alpha),
        masks_of_rows_dropped(model, padding.counts_mask),
        encoders_unpadded(*padding.encoders_and_caller(base_model(model))),
        unread_tokens_skipped(model, skips_unread_tokens(args)),
        positions_made_once(model, few_kernels),
        norms_in_few_kernels(model, few_kernels),
        rotations_in_few_kernels(model, few_kernels),
        vector_weights_as_matrices(model, device.type == "mps"),
        attention_chunked(shortest_chunked(args, device), model, without_padding=padding.applies),
        told_of_large_products(model, device, apple_chip(), split=head),
        logits_deferred(head, device, apple_chip(), defers),
        trainer._mt_precision.applied_to(model),
    ):
        yield padding


def skips_unread_tokens(args: TrainingArguments) -> bool:
    """Returns True if the last layer of a classifier is to be computed for the first token alone.

    A compiled model is left alone, and so is one in shards, whose layers get other classes.
    """
    return args.skip_unread_tokens and not args.torch_compile and not args.fsdp


@contextlib.contextmanager
def noisy_embeddings(model: nn.Module, alpha: float | None) -> Iterator[None]:
    """Adds noise to embeddings in training mode inside (NEFTune, arXiv 2310.05914), unless `alpha` is None."""
    if alpha is None:
        yield
        return
    get = getattr(base_model(model), "get_input_embeddings", None)
    if get is None:
        raise MisconfigurationException(
            f"neftune_noise_alpha={alpha}, but {type(model).__name__} has no get_input_embeddings(), so the Trainer "
            "does not know where to add noise. Leave it out, or give the model that method."
        )
    embeddings = get()
    hook = embeddings.register_forward_hook(neftune_post_forward_hook)
    try:
        with attributes_replaced([(embeddings, "neftune_noise_alpha", alpha)]):
            yield
    finally:
        hook.remove()


def _use_liger_kernels(model: nn.Module, config: Any) -> None:
    try:
        from liger_kernel.transformers import _apply_liger_kernel_to_instance
    except ImportError as error:
        raise MisconfigurationException(
            "use_liger_kernel=True, but the package liger-kernel is not installed. Its kernels are written in Triton, "
            "which does not run on mps: leave it out there; elsewhere, pip install liger-kernel."
        ) from error
    _apply_liger_kernel_to_instance(model=base_model(model), **(config or {}))


def _align_special_tokens(model: Any, processing_class: Any) -> None:
    """Copies the special tokens of the tokenizer, which a user may have changed, to the model's configuration."""
    if processing_class is None or not hasattr(model, "config"):
        return
    from transformers import PreTrainedTokenizerBase, ProcessorMixin
    from transformers.trainer_utils import align_special_tokens

    if isinstance(processing_class, (PreTrainedTokenizerBase, ProcessorMixin)):
        align_special_tokens(model, processing_class)
