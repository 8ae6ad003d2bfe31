"""Frozen layers whose weights are in MLX's quantized format.

MLX quantizes groups of numbers of a row: w = scale * q + bias, with q of 2 to 8 bits. It packs the values of q into
32-bit words, lowest bits first, which are kept here as bytes. A layer dequantizes its weight in each pass and keeps
nothing for the backward pass but its input's shape, so a step needs the memory of one layer's weight in 16 bits.

The format is read from mlx 0.32.4 (`mx.quantize`). torch's product of 4-bit weights, `_weight_int4pack_mm`, takes
scales and zero points in bfloat16 alone, where MLX's bias would lose up to 0.4 %, and its weights are laid out anew.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)
_BYTES = {3: 3, 5: 5, 6: 3}  # values of these bits cross the borders of bytes, and begin anew after so many


def packed_bytes(columns: int, bits: int) -> int:
    """Returns the bytes of a row of `columns` values."""
    return columns * bits // 8


def shifts_of(bits: int, device: torch.device) -> torch.Tensor:
    """Returns the places of values in a byte, or in the bytes after which values begin anew."""
    count = _BYTES.get(bits, 1)
    return torch.arange(0, 8 * count, bits, dtype=torch.uint8 if count == 1 else torch.int64, device=device)


def unpack(packed: torch.Tensor, bits: int, shifts: torch.Tensor) -> torch.Tensor:
    """Returns the values in rows of bytes, as whole numbers of rows x columns.

    Args:
        shifts: see `shifts_of`.
    """
    if bits == 8:
        return packed
    if bits in _BYTES:
        parts = packed.unflatten(-1, (-1, _BYTES[bits])).long()
        packed = parts[..., 0]
        for place in range(1, parts.shape[-1]):
            packed = packed | (parts[..., place] << (8 * place))
    return (packed.unsqueeze(-1) >> shifts).bitwise_and_(2**bits - 1).flatten(-2)


def dequantize(
    packed: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, bits: int, shifts: torch.Tensor
) -> torch.Tensor:
    """Returns scale * q + bias for rows of packed values, in the number format of the scales.

    Args:
        packed: bytes, ... x bytes of a row.
        scales, biases: ... x groups.
        shifts: see `shifts_of`.
    """
    values = unpack(packed, bits, shifts).unflatten(-1, (scales.shape[-1], -1)).to(scales.dtype)
    # into its own input: for a head of 150,000 words another such tensor is half a gigabyte
    return torch.addcmul(biases.unsqueeze(-1), values, scales.unsqueeze(-1), out=values).flatten(-2)


class _Quantized:
    """Holds packed values, scales and biases of a layer as a parameter and two buffers."""

    scales: torch.Tensor
    biases: torch.Tensor
    shifts: torch.Tensor
    bits: int
    _name = "weight"

    def _hold(self: Any, packed: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, bits: int) -> None:
        parameter = packed if isinstance(packed, nn.Parameter) else nn.Parameter(packed, requires_grad=False)
        self.register_parameter(self._name, parameter)
        self.register_buffer("scales", scales)
        self.register_buffer("biases", biases)
        self.register_buffer("shifts", shifts_of(bits, packed.device), persistent=False)
        self.bits = bits

    @property
    def dtype(self) -> torch.dtype:
        """Returns the number format that the layer computes in."""
        return self.scales.dtype

    @property
    def packed(self: Any) -> torch.Tensor:
        """Returns the packed values, rows x bytes of a row."""
        packed: torch.Tensor = self._parameters[self._name]
        return packed

    def dequantized(self, packed: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the weight of the layer, or that in `packed`, as numbers of rows x columns."""
        packed = self.packed if packed is None else packed
        return dequantize(packed, self.scales, self.biases, self.bits, self.shifts)


class MLXLinear(_Quantized, nn.Linear):
    """A linear layer on MLX's quantized weights, which are frozen.

    It is an `nn.Linear` so that PEFT finds it: adapters compute beside it. `weight` has bytes, so merging an adapter
    into it raises torch's error.

    Args:
        packed: bytes, out x bytes of a row.
        scales, biases: out x groups.
        bits: of a value.
        bias: that of the layer, or None.
    """

    def __init__(
        self,
        packed: torch.Tensor,
        scales: torch.Tensor,
        biases: torch.Tensor,
        bits: int,
        bias: torch.Tensor | None = None,
    ) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = len(packed), packed.shape[1] * 8 // bits
        self._hold(packed, scales, biases, bits)
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias, requires_grad=False))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = _Product.apply(input, self)
        return out

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, bits={self.bits}, group_size={self.in_features // self.scales.shape[1]}"


class MLXHead(MLXLinear):
    """A head on MLX's quantized weights, whose `weight` is dequantized when it is read.

    Losses of libraries, such as TRL's, compute with the weight of the head themselves. Setting the weight raises an
    error. Its packed values may be those of the embeddings.
    """

    _name = "packed_weight"

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]
        return self.dequantized()


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, layer: MLXLinear) -> torch.Tensor:
        ctx.layer, ctx.dtype = layer, input.dtype
        return nn.functional.linear(input, layer.dequantized(), layer.bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        weight = ctx.layer.dequantized()
        if weight.dtype is not grad.dtype:  # under autocast
            weight = weight.to(grad.dtype)
        return torch.matmul(grad, weight).to(ctx.dtype), None


class MLXEmbedding(_Quantized, nn.Embedding):
    """An embedding on MLX's quantized weights, which are frozen.

    Args:
        packed, scales, biases, bits: as those of `MLXLinear`, with a row for each word.
        padding_idx: that of the embedding.
        factor: what the vectors are multiplied by, as in Gemma.
    """

    def __init__(
        self,
        packed: torch.Tensor,
        scales: torch.Tensor,
        biases: torch.Tensor,
        bits: int,
        padding_idx: int | None = None,
        factor: float | None = None,
    ) -> None:
        nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim = len(packed), packed.shape[1] * 8 // bits
        self.padding_idx, self.factor = padding_idx, factor
        self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse = None, 2.0, False, False
        self._hold(packed, scales, biases, bits)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        found = dequantize(self.packed[input], self.scales[input], self.biases[input], self.bits, self.shifts)
        # rounded to the number format first, as Gemma's own layer does
        return found if self.factor is None else found * torch.tensor(self.factor, dtype=found.dtype).item()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, bits={self.bits}"
