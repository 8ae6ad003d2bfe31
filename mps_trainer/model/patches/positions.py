"""The positions of tokens, made once for each length rather than in every step, on mps.

A decoder that is given none numbers its tokens from 0, and, without an attention mask, asks the device whether several
sequences are packed into one, which waits for all that is queued. Both answers depend on the length alone.

Gain, by `python -m benchmarks.patches`: a step of a Llama of two layers without an attention mask has 238 operators
and no wait, without this 247 and one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import masking_utils

from ...utils.attributes import attributes_replaced
from ...utils.caches import has_cache
from ..introspection import is_transformed

# They number their tokens so; others do by padding, or by the images among them.
DECODERS = {
    *("LlamaModel", "MistralModel", "MixtralModel", "Qwen2Model", "Qwen3Model", "Qwen2MoeModel", "Qwen3MoeModel"),
    *("GemmaModel", "Gemma2Model", "GraniteModel", "Olmo2Model", "Olmo3Model", "SmolLM3Model", "Phi3Model"),
}
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

    with contextlib.ExitStack() as stack:
        for decoder in decoders:
            stack.callback(decoder.register_forward_pre_hook(positions.give, with_kwargs=True).remove)
        stack.enter_context(attributes_replaced([(masking_utils, SEARCH, search)]))
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
        kept = self._kept.get((device, length))
        if kept is None or kept._version:  # changed in place, by a model or a hook
            if len(self._kept) == MOST:
                self._kept.clear()
            self._kept[device, length] = torch.arange(length, device=device).unsqueeze(0)
        return args, {**kwargs, "position_ids": self._kept[device, length]}

    def has(self, position_ids: torch.Tensor) -> bool:
        """Returns True for such a tensor, also one that is expanded to a batch."""
        kept = self._kept.get((position_ids.device, position_ids.shape[-1]))
        is_kept = kept is not None and (position_ids is kept or position_ids._base is kept._base)
        return is_kept and not position_ids._version
