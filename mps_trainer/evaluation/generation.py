"""Generates tokens for a batch: settings, tokens and their padding."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig

from ..errors import MisconfigurationException
from ..utils.text import first_line


def load_generation_config(gen_config_arg: str | Path | GenerationConfig) -> GenerationConfig:
    """Returns settings of generation: a copy of those given, or read from a file, a folder or the hub.

    Raises:
        MisconfigurationException: if they cannot be read, or contradict themselves.
    """
    if isinstance(gen_config_arg, GenerationConfig):
        config = copy.deepcopy(gen_config_arg)
    else:
        path = Path(gen_config_arg)
        name = path.name if path.is_file() else None
        try:
            config = GenerationConfig.from_pretrained(str(path.parent if name else gen_config_arg), name)
        except (OSError, ValueError) as error:
            raise MisconfigurationException(
                f"generation_config={str(gen_config_arg)!r} cannot be read: {first_line(error)} Name a "
                "folder with a generation_config.json, the file itself, or a model on the hub."
            ) from error
    try:
        config.validate(strict=True)
    except ValueError as error:
        raise MisconfigurationException(f"{error}\n\nFix these issues to train your model.") from error
    return config


def with_defaults(given: Mapping[str, Any], args: Any) -> dict[str, Any]:
    """Returns `given` with missing length and number of beams filled in from the arguments."""
    settings = dict(given)
    length = args.generation_max_length
    if settings.get("max_length") is None and settings.get("max_new_tokens") is None and length is not None:
        settings["max_length"] = length
    if settings.get("num_beams") is None and args.generation_num_beams is not None:
        settings["num_beams"] = args.generation_num_beams
    return settings


def generate(model: Any, inputs: Mapping[str, Any], settings: Mapping[str, Any]) -> torch.Tensor:
    """Returns the tokens that the model generates for a batch."""
    open_ones = {name for name in ("num_beams", "max_length") if settings.get(name) is None}
    settings = {name: value for name, value in settings.items() if name not in open_ones}
    given, labels = dict(inputs), inputs.get("labels")
    decoded = inputs.get("decoder_input_ids")
    if labels is not None and decoded is not None and labels.shape == decoded.shape:
        # made from the labels by a collator: with them there would be nothing left to generate
        for name in ("decoder_input_ids", "decoder_attention_mask"):
            given.pop(name, None)
    tokens = model.generate(**given, **settings)
    config = model.generation_config
    if getattr(config, "_from_model_config", False):
        config._from_model_config = False  # otherwise it would be made anew from the model's, with a warning
    # After its first generation transformers' Trainer has all defaults in the model's settings, max_length among
    # them, by which the next ones end and which are saved.
    config.update(**config._get_default_generation_params(), defaults_only=True)
    return tokens


def padded_to_longest(
    tokens: torch.Tensor, config: Any, pad: Callable[[torch.Tensor, int], torch.Tensor]
) -> torch.Tensor:
    """Returns `tokens` as long as the longest that the model's settings allow, so that batches can be joined."""
    longest = 20 if config.max_length is None else config.max_length
    if tokens.shape[-1] >= longest and config.max_new_tokens is not None:
        longest = config.max_new_tokens + 1
    return pad(tokens, longest) if tokens.shape[-1] < longest else tokens


def padded(tokens: torch.Tensor, length: int, processing_class: Any, model: Any) -> torch.Tensor:
    """Returns `tokens`, padded as `Seq2SeqTrainer._pad_tensors_to_max_len` says."""
    if hasattr(processing_class, "pad_token_id"):
        padding = processing_class.pad_token_id
        padding = processing_class.eos_token_id if padding is None else padding
    else:
        padding = getattr(model.config, "pad_token_id", None)
    if padding is None:
        raise MisconfigurationException(
            "Generated texts of different lengths must be padded, and there is no padding token. Set pad_token_id in "
            "the model's config, or pass a tokenizer that has one as processing_class."
        )
    return nn.functional.pad(tokens, (0, length - tokens.shape[-1]), value=padding)
