"""Gives transformers' models attention in chunks while they train, through its interfaces for attention and masks."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import math
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from transformers import PreTrainedModel, masking_utils
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from ..errors import MisconfigurationException
from ..training_args import TrainingArguments
from ..utils.attributes import attributes_replaced
from ..utils.packed_texts import hand_on_texts, texts_of
from ..utils.text_layout import TextLayout, layout_of, record_layout
from .attention_masks import (
    ChunkedMask,
    GivenMask,
    layout_in,
    reach_of,
    texts_in,
    visible_in_text,
    with_copies,
)
from .attention_registries import (
    ATTENTION,
    MASKS,
    Replacement,
    arguments_of,
    has_own_sdpa,
    is_of_transformers,
    lookups_replaced,
)
from .chunked_attention import chunked_attention
from .patches.positions import SEARCH

logger = logging.getLogger(__name__)

# Keys from which it is used on mps. Below, all scores need little memory, and blocks would take more operators. By
# `python -m benchmarks attention`, processor time of causal attention on a CPU is 0.89 of torch's with 512 tokens,
# 0.63 with 1,024 and 0.39 with 4,096.
SHORTEST = 1024
# The length of the longest text in a row without padding from which attention goes text by text. Below, the row takes
# the form of the padded batch for the attention alone: a text for itself would take more operators.
SHORTEST_BY_TEXTS = 512
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
# Arguments that attention in chunks takes; the mask already has sliding_window.
_HANDLED = {
    *("module", "query", "key", "value", "attention_mask", "dropout", "scaling", "is_causal", "sliding_window"),
    *("query_states", "key_states", "value_states"),
}
_KNOWN = {"accelerate", "bitsandbytes", "mps_trainer", "peft", "torch", "transformers"}  # packages of layers
_CAPTURING = "transformers.utils.output_capturing"  # its hooks do nothing unless the caller asks for weights
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


def _keeps_its_own(network: Any) -> bool:
    layers = [one for one in network.modules() if any(hasattr(one, name) for name in ("is_causal", "scaling"))]
    if not layers:
        return True  # Mamba has no attention, which transformers does not tell; LayoutLM has only "scaling"
    given = [getattr(layer, name) for layer in network.modules() for name in _GIVERS if hasattr(layer, name)]
    if given and all(each is not None for each in given):  # MiMo V2 Flash has sinks in some layers
        return True
    return all(_has_attention_of_others(each, network.config._attn_implementation) for each in layers)


def _has_attention_of_others(layer: nn.Module, kind: str) -> bool:
    """Returns True if an attention layer computes attention itself, or calls a function that is not transformers'."""
    forward = _forward_of(layer)
    forward = getattr(inspect.unwrap(forward), "__func__", inspect.unwrap(forward))
    if not isinstance(forward, FunctionType):
        return True
    names = forward.__code__.co_names
    if not _is_of_known_package(forward) and not {"get_interface", "ALL_ATTENTION_FUNCTIONS"} & set(names):
        return True
    if kind == "sdpa":
        return not has_own_sdpa()
    named = [forward.__globals__.get(name) for name in names]
    functions = [each for each in named if isinstance(each, FunctionType) and not is_of_transformers(each)]
    is_given = any("mask" in argument for each in functions for argument in arguments_of(each))
    return is_given or "eager" in ALL_ATTENTION_FUNCTIONS  # transformers registers none


def _is_masked_by_others(layer: nn.Module) -> bool:
    """Returns True for a layer whose forward() takes a mask and comes from a user or an unknown package."""
    forward = _forward_of(layer)
    if isinstance(layer, PreTrainedModel) or not isinstance(forward, FunctionType) or _is_of_known_package(forward):
        return False
    takes_any = forward.__code__.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    return bool(takes_any) or any("mask" in name for name in arguments_of(forward))


def _forward_of(layer: nn.Module) -> Any:
    forward: Any = vars(layer).get("forward", type(layer).forward)
    return getattr(forward, "func", getattr(forward, "__func__", forward))  # a hook of Accelerate, a bound method


def _is_of_known_package(function: FunctionType) -> bool:
    return function.__globals__.get("__name__", "").partition(".")[0] in _KNOWN


def attention_chunked(
    shortest: int | None, model: nn.Module | None = None, without_padding: bool = False
) -> contextlib.AbstractContextManager[None]:
    """Makes transformers' models that train attend in chunks inside, from `shortest` keys on; None for never.

    It does not change attention and mask functions from elsewhere.

    Args:
        model: the one that trains, whose modules may have hooks that read attention weights.
        without_padding: True if batches may be rows without padding. These attend text by text if they have a text of
            512 tokens or more and `shortest` is not None, else in the form of the padded batch.
    """
    if shortest is None and not without_padding:
        return contextlib.nullcontext()
    return _Chunks(shortest, model).in_use()


class _Chunks:
    """Owns what the functions of a run share: the shortest length, the parents of modules, what has been logged."""

    def __init__(self, shortest: int | None, model: nn.Module | None) -> None:
        modules = [] if model is None else list(model.modules())
        self._shortest = math.inf if shortest is None else shortest
        self._shortest_by_texts = math.inf if shortest is None else min(shortest, SHORTEST_BY_TEXTS)
        self._parents = {child: module for module in modules for child in module.children()}
        networks = [each for each in modules if isinstance(each, PreTrainedModel)]
        # a foreign layer may check that its mask is a tensor, or change it
        self._whole_masks = {id(each.config) for each in networks if any(map(_is_masked_by_others, each.modules()))}
        self._told: set[str] = set()

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, models look up functions that attend in chunks."""
        plain, in_use = AttentionInterface.get_interface, [True]

        def get_interface(registry: AttentionInterface, kind: str, default: Callable) -> Callable:
            function = plain(registry, kind, default)
            if isinstance(function, Replacement):
                return function
            if kind == "eager" and is_of_transformers(function, "eager"):  # models give it as the default
                return Replacement(function, self._attention(function, is_eager=True), in_use)
            return Replacement(function, self._attention_of_others(function, kind), in_use)

        with (
            lookups_replaced(AttentionMaskInterface, MASKS, self._mask),
            lookups_replaced(AttentionInterface, ATTENTION, self._attention),
            attributes_replaced([(AttentionInterface, "get_interface", get_interface)]),
            packed_rows_known(),
        ):
            try:
                yield
            finally:
                in_use.clear()
                self._parents.clear()  # a function that a user keeps after the run must not keep the model alive

    def _mask(self, plain: Callable) -> Callable:
        def make_mask(**kwargs: Any) -> Any:
            length, offset = kwargs["kv_length"], kwargs.get("kv_offset", 0)
            layout = layout_in(kwargs["mask_function"])
            is_short = layout is None and (length < self._shortest or not torch.is_grad_enabled())
            # mask functions from elsewhere may not take blocks of indices
            if is_short or kwargs.get("use_vmap"):
                return plain(**kwargs)
            is_sdpa_of_others = is_of_transformers(plain, MASKS["sdpa"]) and not has_own_sdpa()
            if id(kwargs.get("config")) in self._whole_masks or is_sdpa_of_others:
                return plain(**kwargs)
            if layout is not None:
                return _row_mask(plain, layout, **kwargs)
            visible, given = with_copies(kwargs["mask_function"]), kwargs.get("attention_mask")
            if visible is None:
                return plain(**kwargs)
            texts = texts_in(kwargs["mask_function"])
            given = None if given is None else given.clone()
            make = functools.partial(plain, **{**kwargs, "mask_function": visible, "attention_mask": given})
            padding = masking_utils.prepare_padding_mask(given, length, offset)
            if padding is not None:
                visible = masking_utils.and_masks(visible, masking_utils.padding_mask_function(padding))
            return ChunkedMask(
                visible, reach_of(visible), kwargs["batch_size"], kwargs["q_length"], length,
                torch.device(kwargs["device"]), kwargs.get("q_offset", 0), offset, make, texts,
            )  # fmt: skip

        return make_mask

    def _attention(self, plain: Callable, is_eager: bool = False) -> Callable:
        taken = set(arguments_of(plain)) - _HANDLED

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
            causal = bool(causal) and query.shape[2] > 1 and not is_eager  # eager only applies its mask
            mask = None
            if _is_ordinary(module, query, key, value, dropout, scaling, is_eager):
                mask = self._mask_for(module, query, key, attention_mask, causal, is_eager)
            asked = {"output_attentions": getattr(getattr(module, "config", None), "output_attentions", False)}
            used = {name for name, each in {**asked, **kwargs}.items() if each is not None and each is not False}
            reason = "" if mask is None else self._why_not(module, mask, scaling, used, taken, is_eager)
            if isinstance(attention_mask, ChunkedMask) and (layout := attention_mask.layout) is not None:
                is_by_texts = mask is attention_mask and not reason and layout.length >= self._shortest_by_texts
                if not is_by_texts and attention_mask.in_text is not None:
                    settings = {**kwargs, "dropout": dropout, "scaling": scaling}
                    return _attend_padded(plain, module, query, key, value, attention_mask, is_eager, settings), None
            if mask is not None and not reason:
                scale = query.shape[-1] ** -0.5 if scaling is None else scaling
                share = 0.0 if is_eager and not module.training else dropout  # eager_attention_forward does so
                return chunked_attention(query, key, value, mask, scale, share), None
            if reason:
                self._tell(
                    f"{type(module).__name__} {reason}, so it uses its own attention, whose memory grows with the "
                    "square of a text's length."
                )
            if isinstance(attention_mask, ChunkedMask):
                attention_mask = attention_mask.given
            if is_causal is not None:
                kwargs["is_causal"] = is_causal
            return plain(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)

        return attend

    def _attention_of_others(self, plain: Callable, kind: str) -> Callable:
        def attend(*args: Any, **kwargs: Any) -> Any:
            key = kwargs.get("key", args[2] if len(args) > 2 else None)
            is_long = isinstance(key, torch.Tensor) and key.ndim == 4 and key.shape[2] >= self._shortest
            if kind in KINDS and is_long and torch.is_grad_enabled():
                name = f"{plain.__module__}.{getattr(plain, '__qualname__', type(plain).__qualname__)}"
                self._tell(
                    f"{name} is not a function of transformers, so it computes the attention itself, and attention in "
                    "chunks is off there."
                )
            whole = [each.given if isinstance(each, ChunkedMask) else each for each in args]
            named = {name: each.given if isinstance(each, ChunkedMask) else each for name, each in kwargs.items()}
            return plain(*whole, **named)

        return attend

    def _tell(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            logger.warning(message)

    def _why_not(
        self, module: nn.Module, mask: Any, scaling: Any, used: set[str], taken: set[str], is_eager: bool
    ) -> str:
        """Returns the reason why a layer cannot attend in chunks, as a clause; "" if it can."""
        unsupported = [text for name, text in _UNSUPPORTED.items() if name in used]
        if unsupported:
            return unsupported[0]
        if used & taken:
            return f"passes {min(used & taken)} to its attention"
        if getattr(module, "sinks", None) is not None:
            return _UNSUPPORTED["sinks"]
        if isinstance(scaling, torch.Tensor):
            return "scales its scores by a tensor"
        if isinstance(mask, GivenMask) and mask.whole.requires_grad:
            return "has a mask with a gradient"
        if isinstance(mask, GivenMask) and mask.whole.shape[1] > 1:
            return "has a mask for each head"
        return "has a forward hook, which may read attention weights" if is_eager and self._is_watched(module) else ""

    def _is_watched(self, module: Any) -> bool:
        """Returns True if a forward hook is on an attention layer, or on a module between it and its model."""
        hooks = list(torch_module._global_forward_hooks.values())
        while module is not None and not isinstance(module, PreTrainedModel):
            hooks += module._forward_hooks.values()
            module = self._parents.get(module)
        return any(getattr(hook, "__module__", "") != _CAPTURING for hook in hooks)

    def _mask_for(
        self, module: nn.Module, query: torch.Tensor, key: torch.Tensor, given: Any, is_causal: bool, is_eager: bool
    ) -> ChunkedMask | GivenMask | None:
        """Returns the mask for attention in chunks; None if the model must use its own attention."""
        if isinstance(given, ChunkedMask):
            if given.kv_length != key.shape[2]:  # DeepSeek V4 adds keys, but extends only masks that are tensors
                raise MisconfigurationException(
                    f"{type(module).__name__} has {key.shape[2]} keys, but its mask was made for {given.kv_length}, "
                    "so its attention cannot be computed in chunks. Train with chunked_attention=False."
                )
            fits = given.q_length == query.shape[2] and given.batch_size in (1, query.shape[0])
            if fits and not given.has_changed:
                return given
            given = given.given  # a model may have changed the whole mask in place
        # A reentrant checkpoint runs first without gradients, and must draw the same dropout both times. A decoder
        # without gradients and without a mask generates: in training its mask is a `ChunkedMask`.
        is_checkpointed = module.training and not (getattr(module, "is_causal", True) and given is None)
        if key.shape[2] < self._shortest or not (torch.is_grad_enabled() or is_checkpointed):
            return None
        if given is not None:
            return _given_mask(given, query, key, is_eager)
        visible = masking_utils.causal_mask_function if is_causal else masking_utils.bidirectional_mask_function
        return ChunkedMask(visible, reach_of(visible), query.shape[0], query.shape[2], key.shape[2], query.device)


def _row_mask(plain: Callable, layout: TextLayout, mask_function: Callable, **kwargs: Any) -> ChunkedMask:
    """Returns the mask of a decoder for a row without padding."""
    length, device = kwargs["kv_length"], torch.device(kwargs["device"])
    make = functools.partial(plain, mask_function=mask_function, **kwargs)
    texts, in_text = texts_in(mask_function), visible_in_text(mask_function)
    return ChunkedMask(
        mask_function, reach_of(mask_function), 1, length, length, device,
        make=make, texts=texts, layout=layout, in_text=in_text,
    )  # fmt: skip


def _attend_padded(
    plain: Callable,
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: ChunkedMask,
    is_eager: bool,
    settings: dict[str, Any],
) -> torch.Tensor:
    """Returns the attention of a row without padding, computed by `plain` in the form of the padded batch.

    Args:
        query, key, value: of 1 x heads x tokens x size.

    Returns:
        A tensor of 1 x tokens x heads x size.
    """
    layout = mask.layout
    assert layout is not None
    # the gradients of the places left out are 0: no text sees them, and the row does not get their attention
    padded = (layout.to_padded_unmasked(each.transpose(1, 2)).transpose(1, 2) for each in (query, key, value))
    attended, _ = plain(module, *padded, mask.for_padded(is_eager, query.dtype), **settings)
    return layout.to_row(attended)


@contextlib.contextmanager
def packed_rows_known() -> Iterator[None]:
    """Inside, transformers' masks of packed rows know where texts begin, if the host does.

    transformers asks the device whether a row has several texts, and waits for the answer.
    """
    plain = getattr(masking_utils, SEARCH, None)
    if plain is None:
        yield
        return

    def search(position_ids: torch.Tensor) -> torch.Tensor | None:
        texts = texts_of(position_ids)
        if texts is None:
            return plain(position_ids)
        if not texts.is_packed:
            return None
        numbers = torch.nn.functional.pad((position_ids.diff(dim=-1) != 1).cumsum(-1), (1, 0))
        if (layout := layout_of(position_ids)) is not None:
            record_layout(numbers, layout)
        return hand_on_texts(texts, numbers)

    with attributes_replaced([(masking_utils, SEARCH, search)]):
        yield


def _is_ordinary(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout: Any,
    scaling: Any,
    is_eager: bool,
) -> bool:
    """Returns True for tensors and numbers that every attention function takes; others go to the model's own."""
    if not (query.ndim == key.ndim == value.ndim == 4 and query.device == key.device == value.device):
        return False
    batch, heads, _, size = query.shape
    key_heads, groups = key.shape[1], getattr(module, "num_key_value_groups", 1)
    if (
        key.shape[:3] != value.shape[:3]
        or key.shape[0] != batch
        or key.shape[3] != size
        or heads != key_heads * groups
    ):
        return False
    kinds = {_computed_in(each) for each in (query, key, value)}
    has_scale = scaling is not None or not is_eager or getattr(module, "head_dim", size) == size
    is_share = isinstance(dropout, (int, float)) and 0 <= dropout < 1
    return len(kinds) == 1 and query.is_floating_point() and has_scale and is_share


def _given_mask(given: Any, query: torch.Tensor, key: torch.Tensor, is_eager: bool) -> GivenMask | None:
    """Wraps a given mask for attention in chunks; None if torch refuses it, or eager attention promotes it."""
    shape = *query.shape[:3], key.shape[2]
    if not isinstance(given, torch.Tensor) or given.ndim not in (2, 3, 4) or given.device != query.device:
        return None
    if any(one not in (1, most) for one, most in zip(reversed(given.shape), reversed(shape), strict=False)):
        return None
    if is_eager:
        is_autocast = torch.is_autocast_enabled(query.device.type)
        kinds = {query.dtype, torch.float32} if is_autocast else {query.dtype}
        kind = given.dtype
    else:
        kinds, kind = {torch.bool, torch.float32, _computed_in(query)}, _computed_in(given)
    if kind not in kinds:
        return None
    if given.ndim < 4 or given.shape[2:] != shape[2:]:
        given = given.expand(*shape[:1], given.shape[-3] if given.ndim > 2 else 1, *shape[2:])
    return GivenMask(given)


def _computed_in(tensor: torch.Tensor) -> torch.dtype:
    """Returns the type to which torch's attention casts a tensor, which autocast changes."""
    device = tensor.device.type
    is_cast = tensor.is_floating_point() and tensor.dtype is not torch.float64 and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if is_cast else tensor.dtype
