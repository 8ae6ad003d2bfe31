"""Writes models in MLX's quantized format, without MLX."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from tests.tiny import tokenizer_of_words


def packed(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Packs whole numbers of rows x columns into 32-bit words, lowest bits first."""
    each = (values.numpy()[..., None] >> np.arange(bits)) & 1
    rows = np.packbits(each.reshape(len(values), -1).astype(np.uint8), axis=1, bitorder="little")
    return torch.from_numpy(rows.view(np.uint32).copy())


def quantized(weight: torch.Tensor, bits: int, group_size: int) -> dict[str, torch.Tensor]:
    """Returns the tensors of a layer: its smallest number is 0 in each group, and its largest the largest value."""
    groups = weight.unflatten(-1, (-1, group_size))
    low, high = groups.amin(-1), groups.amax(-1)
    scales = ((high - low) / (2**bits - 1)).clamp_min(1e-7)
    values = ((groups - low.unsqueeze(-1)) / scales.unsqueeze(-1)).round().clamp(0, 2**bits - 1).long().flatten(-2)
    return {"weight": packed(values, bits), "scales": scales, "biases": low}


def dequantized(weight: torch.Tensor, bits: int, group_size: int) -> torch.Tensor:
    """Returns what is left of a weight after quantizing it."""
    groups = weight.unflatten(-1, (-1, group_size))
    parts = quantized(weight, bits, group_size)
    scales, biases = parts["scales"].unsqueeze(-1), parts["biases"].unsqueeze(-1)
    return (((groups - biases) / scales).round().clamp(0, 2**bits - 1) * scales + biases).flatten(-2)


def save_quantized(model: Any, folder: Path, bits: int = 4, group_size: int = 32, **layers: Any) -> None:
    """Saves a model of transformers in MLX's format, and changes its weights to those that are saved.

    Args:
        layers: bits and group size of some layers, by name; the dots are written as two underscores.
    """
    own = {name.replace("__", "."): value for name, value in layers.items()}
    config = {**model.config.to_dict(), "quantization": {"bits": bits, "group_size": group_size, **own}}
    tensors: dict[str, torch.Tensor] = {}
    tied = model.get_output_embeddings() if model.config.tie_word_embeddings else None
    for name, module in model.named_modules():
        if module is tied:
            continue
        own_settings = own.get(name, config["quantization"])
        for key, value in module.named_parameters(recurse=False):
            is_quantized = isinstance(module, (nn.Linear, nn.Embedding)) and key == "weight" and own_settings
            if is_quantized:
                given = own_settings["bits"], own_settings["group_size"]
                parts = quantized(value.data, *given)
                tensors.update({f"{name}.{part}": tensor for part, tensor in parts.items()})
                value.data.copy_(dequantized(value.data, *given))
            else:
                tensors[f"{name}.{key}"] = value.data.clone()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    tokenizer_of_words().save_pretrained(folder)
