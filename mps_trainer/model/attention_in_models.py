"""Gives transformers' models attention in chunks while they train, through its interfaces for attention and masks."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, masking_utils
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..errors import MisconfigurationException
from ..training_args import TrainingArguments
from ..utils.attributes import attributes_replaced
from .attention import chunked_attention
from .attention_masks import ChunkedMask, GivenMask, reach_of

logger = logging.getLogger(__name__)

# Keys from which it is used on mps. Below, all scores need little memory, and blocks would take more operators. By
# `python -m benchmarks attention`, processor time of causal attention on a CPU is 0.89 of torch's with 512 tokens,
# 0.63 with 1,024 and 0.39 with 4,096.
SHORTEST = 1024
KINDS = ("sdpa", "eager")  # the kinds of attention that it replaces
# Arguments of attention functions that change the scores or ask for them, and what a model does that gives them.
_UNSUPPORTED = {
    "position_bias": "adds a position bias to the scores",
    "softcap": "caps the scores",
    "s_aux": "has attention sinks",
    "sinks": "has attention sinks",
    "indices": "chooses its keys",
    "block_indices": "chooses its keys",
    "cache": "reads keys from a paged cache",
    "output_attentions": "returns attention weights",
}
# Attention layers that give such arguments have one of these attributes, as those of T5, Gemma 2 and GPT-OSS do.
_GIVERS = ("has_relative_attention_bias", "attn_logit_softcapping", "sinks")


def shortest_chunked(args: TrainingArguments, device: torch.device) -> int | None:
    """Returns the number of keys from which a run on `device` attends in chunks; None for never."""
    if args.chunked_attention is None:
        return SHORTEST if device.type == "mps" and not args.torch_compile else None
    return 1 if args.chunked_attention else None


def describe_attention(model: Any, args: TrainingArguments) -> str | None:
    """Returns a clause about attention in chunks; None if the run does not use it or no text of `model` is so long."""
    shortest = shortest_chunked(args, args.device)
    networks = [each for each in model.modules() if isinstance(each, PreTrainedModel)]
    # the others have attention of their own
    configs = [each.config for each in networks if each._can_set_attn_implementation() and not _keeps_its_own(each)]
    used = [each for each in configs if each._attn_implementation in KINDS]
    longest = max((getattr(each, "max_position_embeddings", None) or sys.maxsize for each in used), default=0)
    if shortest is None or longest < shortest:
        return None
    return "attention in chunks" + (f" for texts of {shortest:,} tokens or more" if shortest > 1 else "")


def _keeps_its_own(network: nn.Module) -> bool:
    if not any(hasattr(layer, name) for layer in network.modules() for name in ("is_causal", "scaling")):
        return True  # Mamba has no attention, which transformers does not tell; LayoutLM has only "scaling"
    given = [getattr(layer, name) for layer in network.modules() for name in _GIVERS if hasattr(layer, name)]
    return bool(given) and all(each is not None for each in given)  # MiMo V2 Flash has sinks in some layers


def attention_chunked(shortest: int | None) -> contextlib.AbstractContextManager[None]:
    """Makes transformers' models that train attend in chunks inside, from `shortest` keys on; None for never."""
    if shortest is None:
        return contextlib.nullcontext()
    masks, functions, told = ALL_MASK_ATTENTION_FUNCTIONS, ALL_ATTENTION_FUNCTIONS, set[str]()
    own_masks = {kind: _mask_function(masks[kind], shortest) for kind in KINDS}
    own_functions = {"sdpa": _attention_function(functions["sdpa"], shortest, told)}
    plain_interface = functions.get_interface

    def get_interface(kind: str, default: Callable) -> Callable:  # models give their eager attention as the default
        function = plain_interface(kind, default)
        return _attention_function(function, shortest, told, is_eager=True) if kind == "eager" else function

    return attributes_replaced(
        [
            (masks, "_local_mapping", masks._local_mapping | own_masks),
            (functions, "_local_mapping", functions._local_mapping | own_functions),
            (functions, "get_interface", get_interface),
        ]
    )


def _mask_function(plain: Callable, shortest: int) -> Callable:
    @functools.wraps(plain)
    def make_mask(**kwargs: Any) -> Any:
        # functions that somebody gave may not take blocks of indices
        if kwargs["kv_length"] < shortest or kwargs.get("use_vmap") or not torch.is_grad_enabled():
            return plain(**kwargs)
        visible, given = kwargs["mask_function"], kwargs.get("attention_mask")
        length, offset = kwargs["kv_length"], kwargs.get("kv_offset", 0)
        padding = masking_utils.prepare_padding_mask(given, length, offset)
        if padding is not None:
            visible = masking_utils.and_masks(visible, masking_utils.padding_mask_function(padding))
        asked = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return ChunkedMask(
            visible, reach_of(visible), kwargs["batch_size"], kwargs["q_length"], length,
            torch.device(kwargs["device"]), kwargs.get("q_offset", 0), offset,
            functools.partial(plain, **{**kwargs, **asked}),
        )  # fmt: skip

    return make_mask


def _attention_function(plain: Callable, shortest: int, told: set[str], is_eager: bool = False) -> Callable:
    def attend(
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        causal = bool(causal) and query.shape[2] > 1 and not is_eager  # sdpa does so; eager has its mask alone
        mask = _mask_for(module, query, key, attention_mask, causal, shortest)
        asked = {"output_attentions": getattr(getattr(module, "config", None), "output_attentions", False), **kwargs}
        used = {name for name, each in asked.items() if each is not None and each is not False}
        reason = next((text for name, text in _UNSUPPORTED.items() if name in used), "")
        if mask is not None and not reason:
            scale = query.shape[-1] ** -0.5 if scaling is None else scaling
            return chunked_attention(query, key, value, mask, scale, dropout), None
        if mask is not None and reason not in told:
            told.add(reason)
            logger.warning(
                "%s %s, so it uses its own attention, whose memory grows with the square of a text's length.",
                type(module).__name__, reason,
            )  # fmt: skip
        if isinstance(attention_mask, ChunkedMask):
            attention_mask = attention_mask.whole
        if is_causal is not None:
            kwargs["is_causal"] = is_causal
        return plain(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)

    return attend


def _mask_for(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, given: Any, is_causal: bool, shortest: int
) -> ChunkedMask | GivenMask | None:
    """Returns the mask for attention in chunks; None where the model's own is to be used."""
    if isinstance(given, ChunkedMask):
        if given.kv_length != key.shape[2]:  # DeepSeek V4 adds keys, and to its mask only where that is a tensor
            raise MisconfigurationException(
                f"{type(module).__name__} has {key.shape[2]} keys, but its mask was made for {given.kv_length}, so "
                "its attention cannot be computed in chunks. Train with chunked_attention=False."
            )
        return given
    # A reentrant checkpoint runs first without gradients, and must draw the same dropout both times. A decoder without
    # gradients and without a mask generates: in training its mask is a `ChunkedMask`.
    is_checkpointed = module.training and not (getattr(module, "is_causal", True) and given is None)
    if key.shape[2] < shortest or not (torch.is_grad_enabled() or is_checkpointed):
        return None
    if given is not None:
        is_shared = given.ndim == 4 and given.shape[1] == 1  # by all heads, of which a block has some
        return GivenMask(given) if is_shared and not given.requires_grad else None
    visible = masking_utils.causal_mask_function if is_causal else masking_utils.bidirectional_mask_function
    return ChunkedMask(visible, reach_of(visible), query.shape[0], query.shape[2], key.shape[2], query.device)
