"""Reads properties of a model: its base model, its inputs, the operations of a token, the devices that it spans."""

from __future__ import annotations

import inspect
import logging
import sys
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..distributed.sharded import class_of
from ..errors import MisconfigurationException
from ..utils.compiled import inside_compiled

logger = logging.getLogger(__name__)

# The losses of these causal language models of transformers compare each position with the label at that position.
_SAME_POSITION = ("XLMWithLMHeadModel", "XLNetLMHeadModel")
_operations: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # by model: to count them takes 1 ms


def unwrapped(model: Any) -> Any:
    """Returns the module inside DataParallel, compiled modules and other wrappers that pass all arguments on.

    A wrapper has the module as `module` or `_orig_mod`, as in torch, and its forward() takes `*args, **kwargs`.
    """
    while True:
        inner = inside_compiled(model)
        if inner is model:
            inner = getattr(model, "module", None)
            if not (isinstance(inner, nn.Module) and _takes_anything(model)):  # reading the signature takes 20 µs
                return model
        model = inner


def _takes_anything(model: Any) -> bool:
    if not callable(getattr(model, "forward", None)):
        return False
    parameters = inspect.signature(model.forward).parameters.values()
    return all(parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) for parameter in parameters)


def base_model(model: Any) -> Any:
    """Returns the model under wrappers and PEFT's adapters, or `model` itself."""
    return without_adapters(unwrapped(model))


def without_adapters(model: Any) -> Any:
    """Returns the model under PEFT's adapters, or `model` itself."""
    if hasattr(model, "get_base_model"):
        return model.get_base_model()
    peft = sys.modules.get("peft")
    if peft is not None and isinstance(model, peft.PeftMixedModel):  # the one kind without get_base_model
        return model.base_model.model
    return model


def accepts_loss_kwargs(model: nn.Module) -> bool:
    """Returns True if forward() takes arguments for the loss, such as num_items_in_batch, or `**kwargs`."""
    model = base_model(model)
    if hasattr(model, "accepts_loss_kwargs"):
        return bool(model.accepts_loss_kwargs)
    parameters = inspect.signature(model.forward).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def main_input_name(model: Any) -> str:
    """Returns the name of the model's main input, by default `input_ids`."""
    return getattr(model, "main_input_name", "input_ids")


def main_input(model: Any, inputs: Any) -> torch.Tensor | None:
    """Returns the model's main input; None if the batch has no such tensor."""
    value = inputs.get(main_input_name(model)) if isinstance(inputs, Mapping) else None
    return value if isinstance(value, torch.Tensor) else None


def flos_per_token(model: Any) -> int:
    """Returns an estimate for forward and backward: 6 x parameters (Kaplan et al. 2020, section 2.1).

    Embeddings are left out of the parameters, as in the source: looking up a row is not an operation. 0 for a model
    that does not tell its number of parameters.
    """
    if model not in _operations:  # `forget_operations` removes it
        count = getattr(model, "num_parameters", None)
        _operations[model] = 0 if count is None else 6 * count(exclude_embeddings=True)
    return _operations[model]


def forget_operations(model: Any) -> None:
    """Has `flos_per_token` count again: layers may have been added to a model or removed."""
    _operations.pop(model, None)


def tokens_in(model: Any, inputs: Any, without_padding: bool, pad_token_id: int | None) -> int | None:
    """Returns the tokens of a batch; None, with a warning, if it does not have the model's main input."""
    tokens = main_input(model, inputs)
    if tokens is None:
        logger.warning(
            "include_num_input_tokens_seen: the batch has no %r, so its tokens are not counted. Give the model's "
            "class the attribute main_input_name.",
            main_input_name(model),
        )
        return None
    if without_padding and "attention_mask" in inputs:
        return int(inputs["attention_mask"].sum())
    if without_padding and pad_token_id is not None:
        return int((tokens != pad_token_id).sum())
    if without_padding:
        logger.warning(
            "include_num_input_tokens_seen: the batch does not mark its padding, so all tokens are counted."
        )
    return tokens.numel()


def shifts_labels(model: nn.Module) -> bool:
    """Returns True if the model's loss predicts the next token, so the first label of each row is not a target."""
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    loss_type = getattr(model, "loss_type", None)
    if loss_type is None:
        return False
    from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss

    return LOSS_MAPPING.get(loss_type) is ForCausalLMLoss


def predicts_next_token(model: nn.Module) -> bool:
    """Returns True for a causal language model, where the logits at a position predict the next label."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return class_of(base_model(model)).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()


def loss_is_of_next_token(model: nn.Module) -> bool:
    """Returns True if the model's loss compares each position with the next label.

    transformers gives a class whose name has no loss of its own, such as GPT2LMHeadModel, the causal one, but counts
    all labels of it; `shifts_labels`, by which it counts them, is False then.
    """
    is_default = getattr(model, "loss_type", "") is None and predicts_next_token(model)
    return shifts_labels(model) or (is_default and class_of(model).__name__ not in _SAME_POSITION)


def spans_devices(model: nn.Module) -> bool:
    """Returns True if `from_pretrained(device_map=...)` has spread the model over several accelerators."""
    places = set((getattr(model, "hf_device_map", None) or {}).values())
    return len(places - {"cpu", "disk"}) > 1


def is_offloaded(model: nn.Module) -> bool:
    """Returns True if Accelerate keeps weights on disk or on the host, and loads them when a module runs."""
    has_hooks = any(hasattr(module, "_hf_hook") for module in model.modules())
    return has_hooks and any(parameter.is_meta for parameter in model.parameters())


def check_trainable(model: nn.Module) -> None:
    """Raises MisconfigurationException if no parameter of `model` requires a gradient."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise MisconfigurationException(
            f"There is nothing to train: no parameter of {type(model).__name__} requires a gradient. Unfreeze some "
            "with requires_grad_(True), or add adapters to the model, for example with PEFT's get_peft_model."
        )


def is_transformed() -> bool:
    """Returns True inside `torch.compile` and the transforms of `torch.func`, which trace the called code."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
