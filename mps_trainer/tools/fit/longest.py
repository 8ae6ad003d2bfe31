"""Finds the longest text that fits each Mac."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ...data.batch_checks import BatchCheck
from ...errors import MisconfigurationException
from ...model.introspection import base_model
from ...utils.nested import map_tensors
from .step import Batch, measure_step

if TYPE_CHECKING:
    from ...trainer import Trainer

STEP = 256  # tokens by which lengths differ
MOST = 2**17  # tokens, for a model that does not limit its positions


def longest_texts(
    trainer: Trainer, batch: Batch, limits: Iterable[int], tell: Callable[[str], None]
) -> dict[int, int | None]:
    """Returns the longest text for each limit in bytes; None if none fits. Call it inside `as_on_mps()`.

    Each length is one with which a step was computed and fits. A text that is longer by a sixteenth, or by 256 tokens,
    does not fit, unless the model has no more positions.

    Args:
        batch: whose texts are repeated or cut to other lengths.

    Raises:
        MisconfigurationException: if the batch has no `input_ids`.
    """
    tokens = batch.inputs.get("input_ids") if hasattr(batch.inputs, "get") else None
    if not isinstance(tokens, torch.Tensor) or tokens.dim() != 2:
        raise MisconfigurationException(
            "--longest needs batches with input_ids of batch x length, and these have none."
        )
    model = base_model(trainer.model)
    config = getattr(model, "config", None)
    most = BatchCheck(model).positions or getattr(config, "max_position_embeddings", None) or MOST
    shape, peaks = tokens.shape, dict[int, int]()

    def peak(tokens: int) -> int:
        if tokens not in peaks:
            tell(f"texts of {tokens:,} tokens")
            inputs = map_tensors(batch.inputs, lambda each: _stretched(each, shape, tokens))
            peaks[tokens] = measure_step(trainer, replace(batch, inputs=inputs)).bytes_peak
        return peaks[tokens]

    return {limit: longest(peak, limit, min(STEP, most), most) for limit in limits}


def longest(peak: Callable[[int], int], limit: int, shortest: int, most: int) -> int | None:
    """Returns the largest number of tokens whose `peak`, which grows with them, is within `limit`; None if none is.

    Doubles the number until it is too large, then guesses between the last two from the line through them.
    """
    if peak(shortest) > limit:
        return None
    low, high = shortest, min(2 * shortest, most)
    while peak(high) <= limit:
        if high == most:
            return most
        low, high = high, min(2 * high, most)
    while high - low > max(STEP, low // 16):
        share = (limit - peak(low)) / (peak(high) - peak(low))
        guess = low + int(share * (high - low)) // STEP * STEP
        middle = min(max(guess, low + STEP), high - 1)
        low, high = (middle, high) if peak(middle) <= limit else (low, middle)
        # a guess that fits is near the border: look at what is just above it next
        if low == middle and high - low > max(STEP, low // 16):
            above = low + max(STEP, low // 16 // STEP * STEP)
            low, high = (above, high) if peak(above) <= limit else (low, above)
    return low


def _stretched(tensor: torch.Tensor, shape: torch.Size, tokens: int) -> torch.Tensor:
    """Returns a tensor of integers of the texts' shape with `tokens` in place of their length; others as they are."""
    if tensor.shape != shape or tensor.is_floating_point():
        return tensor
    return tensor.repeat(1, -(-tokens // shape[1]))[:, :tokens].contiguous()
