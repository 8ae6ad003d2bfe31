"""Counts input tokens and floating-point operations of a batch from shapes, without blocking."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch

logger = logging.getLogger(__name__)


def main_input(inputs: Any, name: str) -> torch.Tensor | None:
    """Returns the input of that name, None if the batch has no such tensor."""
    value = inputs.get(name) if isinstance(inputs, Mapping) else None
    return value if isinstance(value, torch.Tensor) else None


def flos_per_token(model: Any) -> int:
    """Returns an estimate for forward and backward: 6 x parameters (Kaplan et al. 2020, section 2.1).

    Embeddings are left out of the parameters, as in the source: looking up a row is not an operation. 0 for a model
    that does not tell its number of parameters.
    """
    count = getattr(model, "num_parameters", None)
    return 0 if count is None else 6 * count(exclude_embeddings=True)


def tokens_in(inputs: Any, name: str, without_padding: bool, pad_token_id: int | None) -> int | None:
    """Returns the tokens of a batch in its input `name`; None, with a warning, if it has no such input."""
    tokens = main_input(inputs, name)
    if tokens is None:
        logger.warning(
            "include_num_input_tokens_seen: the batch has no %r, so its tokens are not counted. Give the model's "
            "class the attribute main_input_name.",
            name,
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
