"""The positions of tokens, made once for each length rather than in every step, on mps.

A decoder that is given none numbers its tokens from 0, computes their sines and cosines, and, without an attention
mask, asks the device whether several sequences are packed into one, which waits for all that is queued. All three
answers depend on the length alone.

Gain, by `python -m benchmarks.patches`: a step of a Llama of two layers without an attention mask has 223 operators
and no wait, without this 242 and one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from transformers import masking_utils

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
    decoders = []
    if applies:
        decoders = [module for module in model.modules() if _is_known(type(module))]
    plain = getattr(masking_utils, SEARCH, None)
    if not decoders or plain is None:
        yield
        return
    positions = _Positions()

    def search(position_ids: torch.Tensor) -> torch.Tensor | None:
        return None if positions.has(position_ids) else plain(position_ids)

    hooks = [one.register_forward_pre_hook(positions.give, with_kwargs=True) for one in decoders]
    rotaries: list[Any] = [one.rotary_emb for one in decoders if _is_static(getattr(one, "rotary_emb", None))]
    for rotary in rotaries:
        rotary.forward = _Tables(rotary.forward, positions)
    setattr(masking_utils, SEARCH, search)
    try:
        yield
    finally:
        if getattr(masking_utils, SEARCH) is search:
            setattr(masking_utils, SEARCH, plain)
        for rotary in rotaries:
            if isinstance(vars(rotary).get("forward"), _Tables):
                del rotary.forward
        for hook in hooks:
            hook.remove()


class _Positions:
    """The numbers from 0 on, a tensor of 1 x length for each length."""

    def __init__(self) -> None:
        self._kept: dict[Any, torch.Tensor] = {}

    def give(self, decoder: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """Adds them to what a decoder is called with, if it would make the same."""
        tokens = kwargs.get("input_ids")
        tokens = kwargs.get("inputs_embeds") if tokens is None else tokens
        given = kwargs.get("position_ids") is not None or kwargs.get("past_key_values") is not None
        if args or given or type(tokens) is not torch.Tensor or _is_elsewhere():
            return None
        key = tokens.device, tokens.shape[1]
        if key not in self._kept:
            if len(self._kept) == MOST:
                self._kept.clear()
            self._kept[key] = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        return args, {**kwargs, "position_ids": self._kept[key]}

    def __getstate__(self) -> dict[str, Any]:
        """Returns what a copy of the model, made during a run, has of it."""
        return {"_kept": {}}

    def has(self, position_ids: torch.Tensor) -> bool:
        """Returns True for such a tensor, also one that is expanded to a batch."""
        kept = self._kept.get((position_ids.device, position_ids.shape[-1]))
        return kept is not None and (position_ids is kept or position_ids._base is kept._base)


class _Tables:
    """A rotary embedding's `forward` that keeps what it computed for the positions that are kept."""

    def __init__(self, plain: Callable, positions: _Positions) -> None:
        self.plain, self.positions = plain, positions
        self._kept: dict[Any, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_kept": {}}

    def __call__(self, x: torch.Tensor, position_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not self.positions.has(position_ids) or _is_elsewhere():
            return self.plain(x, position_ids, *args, **kwargs)
        key = x.device, x.dtype, position_ids.shape, args, tuple(kwargs.items())
        if key not in self._kept:
            if len(self._kept) == MOST:
                self._kept.clear()
            self._kept[key] = self.plain(x, position_ids, *args, **kwargs)
        return self._kept[key]


def _is_elsewhere() -> bool:
    """Returns True where what is made could not be used again."""
    return torch.is_inference_mode_enabled() or is_transformed()


def _is_known(kind: type) -> bool:
    return kind.__module__.startswith("transformers.models.") and kind.__name__ in DECODERS


def _is_static(rotary: Any) -> bool:
    """Returns True for an embedding that computes the same for the same positions."""
    if not isinstance(rotary, nn.Module) or "forward" in vars(rotary):
        return False
    kinds = getattr(rotary, "rope_type", None)
    kinds = list(kinds.values()) if isinstance(kinds, dict) else [kinds]
    return all(isinstance(kind, str) and kind not in CHANGING for kind in kinds)
