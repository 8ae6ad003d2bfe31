"""Moves linear layers quantized by bitsandbytes to the device and keeps them in a format for training.

Read from the source of bitsandbytes 0.50.2, whose package is not imported here: where there is such a layer, it has
been imported already.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..devices.accelerators.mps import no_bitsandbytes_kernels
from ..devices.facts import macos
from ..errors import MisconfigurationException
from .introspection import is_offloaded
from .mlx_layers import MLXEmbedding, MLXLinear


def move(model: nn.Module, device: torch.device, dtype: torch.dtype | None = None) -> nn.Module:
    """Moves the model to `device`, and its floating-point weights to `dtype` if given. Returns it.

    A model whose weights Accelerate offloads stays as it is.

    A layer of 8 bits keeps its weight and the scales of its rows under other names too, which `model.to` leaves where
    they were.
    """
    if is_offloaded(model):
        return model
    model = model.to(device=device, dtype=dtype) if dtype is not None else model.to(device)
    for layer in _layers(model, "Linear8bitLt"):
        for holder in (layer.weight, layer.state):
            if getattr(holder, "CB", None) is not None:
                holder.CB = layer.weight.data  # the same memory, as bitsandbytes has it
            if getattr(holder, "SCB", None) is not None:
                holder.SCB = holder.SCB.to(layer.weight.device)
    return model


def keep_trainable(model: nn.Module) -> None:
    """Keeps 4-bit layers in the layout with gradients, and limits the warnings of 8-bit layers to one.

    On a processor with bfloat16 instructions (AVX512-BF16), bitsandbytes lays a weight out anew at its first forward
    pass without gradients, and rounds its scales to bfloat16. From then on no gradient goes through the layer, and
    merging an adapter reads the new layout as the old one: both without an error.

    Raises:
        MisconfigurationException: if a layer has the other layout already, whose rounding cannot be undone, or is a
            head that shares the weight of the embeddings, which is not quantized.
    """
    for kind, weights in (("Linear4bit", "Params4bit"), ("Linear8bitLt", "Int8Params")):
        if any(type(layer.weight).__name__ != weights for layer in _layers(model, kind)):
            raise MisconfigurationException(
                f"A {kind} of this model has a weight that is not quantized, most likely the weight of the "
                "embeddings, to which a quantized head was tied. Name the head in llm_int8_skip_modules of the "
                "BitsAndBytesConfig, as in ['lm_head'], or leave the argument out."
            )
    for layer in _layers(model, "Linear4bit"):
        if getattr(getattr(layer.weight, "quant_state", None), "packing_format_for_cpu", False):
            raise MisconfigurationException(
                "A forward pass without gradients has converted the model's 4-bit weights to the inference layout "
                "of bitsandbytes on this CPU, which has no gradients. Load the model again, and give it to the "
                "Trainer before you evaluate it or generate with it."
            )
        layer.support_avx512bf16_for_cpu = False
    if next(_layers(model, "Linear8bitLt"), None) is not None:
        logging.getLogger("bitsandbytes.autograd._functions").addFilter(_first_of_casts)


def describe_quantized(model: Any, device: torch.device) -> str | None:
    """Returns a clause about the quantized layers of a model, and how they compute; None if it has none."""
    bits = sorted({each.bits for each in model.modules() if isinstance(each, MLXLinear)})
    if bits:
        return f"frozen weights in MLX's format, {' and '.join(map(str, bits))} bits: dequantized in each pass"
    kind = next(
        (kind for kind in ("Linear4bit", "Linear8bitLt") if next(_layers(model, kind), None) is not None), None
    )
    if kind is None:
        return None
    has_kernels = importlib.util.find_spec("kernels") is not None
    is_slow = device.type == "mps" and no_bitsandbytes_kernels(macos(), torch.__version__, has_kernels) is not None
    how = "without its Metal kernels, which is slow" if is_slow else ""
    return f"frozen weights in {4 if kind == 'Linear4bit' else 8} bits by bitsandbytes{', ' if how else ''}{how}"


def packed_sizes(model: nn.Module) -> dict[int, int]:
    """Returns the number of weights in each packed parameter of MLX's format, by the id of the parameter."""
    layers = [each for each in model.modules() if isinstance(each, (MLXLinear, MLXEmbedding))]
    return {id(each.packed_weight): each.packed_weight.numel() * 8 // each.bits for each in layers}


def _layers(model: nn.Module, kind: str) -> Iterator[Any]:
    """Yields the layers of bitsandbytes' class `kind`, and of its subclasses."""
    layer_class = getattr(getattr(sys.modules.get("bitsandbytes"), "nn", None), kind, None)
    if layer_class is not None:
        yield from (module for module in model.modules() if isinstance(module, layer_class))


_told: set[str] = set()


def _first_of_casts(record: logging.LogRecord) -> bool:
    """Returns True for the first warning of a cast to float16, which comes at each call of each layer of 8 bits."""
    if "will be cast" not in str(record.msg):
        return True
    text = record.getMessage()
    is_new = text not in _told
    _told.add(text)
    return is_new
