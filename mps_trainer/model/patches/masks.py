"""Makes attention masks without asking the device for values.

transformers asks whether a padding mask has any padding, to leave the mask out where it has none. On mps the answer
waits for all that is queued, and leaving the mask out gains next to nothing, as attention adds a mask in any case. On
cuda it gains a faster kernel, so there transformers goes on asking.

Gain, by `python -m benchmarks.patches`: a step of a small BERT has 147 operators and no wait, without it 164 and one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import masking_utils

from ..attention_registries import MASKS, has_own_sdpa, is_of_transformers, lookups_replaced


class AttentionMasks:
    """Makes the attention masks of transformers' models during a forward pass on `device`.

    Attributes:
        applies: True where it is worth it, on mps.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.applies = device.type == "mps"
        self._values: dict[Any, tuple[torch.Tensor, ...]] = {}  # 0 and minus infinity on the device

    def in_use(self) -> contextlib.AbstractContextManager[None]:
        """Patches transformers' mask functions to avoid the device sync; foreign functions stay unchanged."""
        return lookups_replaced(masking_utils.AttentionMaskInterface, MASKS, self._without_asking)

    def _without_asking(self, make: Callable) -> Callable:
        def mask(*args: Any, **kwargs: Any) -> Any:
            given = kwargs.get("attention_mask")
            is_on_device = isinstance(given, torch.Tensor) and given.device.type == self.device.type
            if not is_on_device or torch.compiler.is_compiling() or not has_own_sdpa():
                return make(*args, **kwargs)
            if is_of_transformers(make, "sdpa_mask") and _is_padding_alone(kwargs):
                return self._of_padding(kwargs)
            # transformers asks whether there is padding only if it may leave the mask out
            return make(*args, **{**kwargs, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})

        return mask

    def _of_padding(self, kwargs: Mapping[str, Any]) -> torch.Tensor:
        """Minus infinity where there is padding, else 0, to add to the scores: one kernel for all layers.

        transformers' own is made of indices by a dozen, and each layer makes numbers of its truth values by three.
        """
        given, dtype = kwargs["attention_mask"], kwargs["dtype"]
        values = self._values.get((given.device, dtype))
        if values is None:
            # torch.full, not torch.tensor: a tensor made of a list is copied from the host, and mps waits for that
            values = tuple(torch.full((), number, dtype=dtype, device=given.device) for number in (0.0, -torch.inf))
            self._values[(given.device, dtype)] = values
        batch, length = given.shape
        return torch.where(given, values[0], values[1])[:, None, None, :].expand(batch, 1, kwargs["q_length"], length)


def _is_padding_alone(kwargs: Mapping[str, Any]) -> bool:
    """Returns True if every token may attend to all tokens but padding, so that the model could do without a mask."""
    given = kwargs["attention_mask"]
    return (
        kwargs.get("mask_function") is masking_utils.bidirectional_mask_function
        and bool(kwargs.get("allow_is_bidirectional_skip"))
        and not kwargs.get("use_vmap")
        and kwargs.get("local_size") is None
        and (kwargs.get("q_offset"), kwargs.get("kv_offset")) == (0, 0)
        and isinstance(kwargs.get("dtype"), torch.dtype)
        and given.dtype == torch.bool
        and given.shape == (kwargs.get("batch_size"), kwargs.get("kv_length"))
    )
