"""The positions of tokens, made once for each length rather than in every step, on mps.

A decoder that is given none numbers its tokens from 0, computes their sines and cosines, and, without an attention
mask, asks the device whether several sequences are packed into one, which waits for all that is queued. All three
answers depend on the length alone.

Gain, by `python -m benchmarks.patches`: a step of a Llama of two layers without an attention mask has 227 operators
and no wait, without this 245 and one.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import torch
from torch import nn
from transformers import masking_utils

from ...utils.attributes import attributes_replaced
from ...utils.caches import has_cache
from ...utils.nested import tensors_in
from ..introspection import is_transformed

# They number their tokens so; others do by padding, or by the images among them.
DECODERS = {
    *("LlamaModel", "MistralModel", "MixtralModel", "Qwen2Model", "Qwen3Model", "Qwen2MoeModel", "Qwen3MoeModel"),
    *("GemmaModel", "Gemma2Model", "GraniteModel", "Olmo2Model", "Olmo3Model", "SmolLM3Model", "Phi3Model"),
}
CHANGING = ("dynamic", "longrope")  # rotary embeddings whose frequencies follow the lengths that they have seen
MOST = 16  # lengths that are kept
SEARCH = "find_packed_sequence_indices"


@contextlib.contextmanager
def positions_made_once(model: nn.Module, applies: bool) -> Iterator[None]:
    """Inside, decoders in `model` that are known to number their tokens from 0 get them from here, if it `applies`."""
    decoders = [module for module in model.modules() if applies and type(module).__name__ in DECODERS]
    decoders = [module for module in decoders if type(module).__module__.startswith("transformers.models.")]
    plain = getattr(masking_utils, SEARCH, None)
    if not decoders or plain is None:
        yield
        return
    positions = _Positions()

    def search(position_ids: torch.Tensor) -> torch.Tensor | None:
        return None if positions.has(position_ids) else plain(position_ids)

    rotaries: list[Any] = [one.rotary_emb for one in decoders if _is_static(getattr(one, "rotary_emb", None))]
    forwards = [
        (rotary, "forward", MethodType(_keeping(type(rotary).forward, positions), rotary)) for rotary in rotaries
    ]
    with contextlib.ExitStack() as stack:
        for decoder in decoders:
            stack.callback(decoder.register_forward_pre_hook(positions.give, with_kwargs=True).remove)
        stack.enter_context(attributes_replaced([(masking_utils, SEARCH, search), *forwards]))
        yield


class _Positions:
    """Keeps the numbers from 0 on, a tensor of 1 x length for each length."""

    def __init__(self) -> None:
        self._kept: dict[Any, torch.Tensor] = {}

    def give(self, decoder: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """Adds them to what a decoder is called with, if it would make the same."""
        tokens = kwargs.get("input_ids")
        tokens = kwargs.get("inputs_embeds") if tokens is None else tokens
        given = kwargs.get("position_ids") is not None or has_cache(kwargs)
        if args or given or type(tokens) is not torch.Tensor:
            return None
        if torch.is_inference_mode_enabled() or is_transformed():  # these could not be used again
            return None
        length, device = tokens.shape[1], tokens.device
        made = _kept(self._kept, (device, length), lambda: torch.arange(length, device=device).unsqueeze(0))
        return args, {**kwargs, "position_ids": made}

    def has(self, position_ids: torch.Tensor) -> bool:
        """Returns True for such a tensor, also one that is expanded to a batch."""
        kept = self._kept.get((position_ids.device, position_ids.shape[-1]))
        is_kept = kept is not None and (position_ids is kept or position_ids._base is kept._base)
        return is_kept and not position_ids._version


def _keeping(plain: Callable, positions: _Positions) -> Callable:
    """Returns a forward() for a rotary embedding that keeps the results of `plain` for kept positions."""
    tables: dict[Any, Any] = {}

    @functools.wraps(plain)
    def forward(self: Any, x: torch.Tensor, position_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not positions.has(position_ids) or torch.is_inference_mode_enabled() or is_transformed():
            return plain(self, x, position_ids, *args, **kwargs)
        key = x.device, x.dtype, position_ids.shape, args, tuple(kwargs.items())
        return _kept(tables, key, lambda: plain(self, x, position_ids, *args, **kwargs))

    return forward


def _kept(values: dict[Any, Any], key: Any, make: Callable[[], Any]) -> Any:
    """Returns the tensors under `key`, and makes them again if a model or a hook has changed them in place."""
    if key not in values or any(tensor._version for tensor in tensors_in(values[key])):
        if len(values) == MOST:
            values.clear()
        values[key] = make()
    return values[key]


def _is_static(rotary: Any) -> bool:
    """Returns True for an embedding whose results depend only on the positions."""
    if not isinstance(rotary, nn.Module) or "forward" in vars(rotary):
        return False
    kinds = getattr(rotary, "rope_type", None)
    kinds = list(kinds.values()) if isinstance(kinds, dict) else [kinds]
    return all(isinstance(kind, str) and kind not in CHANGING for kind in kinds)
