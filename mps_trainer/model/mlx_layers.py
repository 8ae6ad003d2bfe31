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

from ..errors import MisconfigurationException

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


class ReadOnlyWeight(torch.Tensor):
    """A dequantized weight, which cannot be written back: setting its `data` raises an error.

    Operators on it return plain tensors. PEFT reads the weights of layers, and merges adapters by setting `data`.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @property
    def data(self) -> torch.Tensor:
        return self.detach().as_subclass(torch.Tensor)

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        raise MisconfigurationException(
            "The weights of a model in MLX's format are quantized and cannot be changed. To merge an adapter into "
            "them, export it with `mps-trainer export ADAPTER --to mlx OUT`, and merge it with mlx_lm.fuse."
        )


class _Quantized:
    """Holds packed values, scales and biases of a layer as a parameter and buffers.

    `weight` is dequantized when it is read: losses of libraries, such as TRL's, read that of the head.
    """

    packed_weight: torch.Tensor
    scales: torch.Tensor
    biases: torch.Tensor
    shifts: torch.Tensor
    bits: int

    def _register_packed(
        self: Any, packed: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, bits: int
    ) -> None:
        parameter = packed if isinstance(packed, nn.Parameter) else nn.Parameter(packed, requires_grad=False)
        self.register_parameter("packed_weight", parameter)
        self.register_buffer("scales", scales)
        self.register_buffer("biases", biases)
        self.register_buffer("shifts", shifts_of(bits, packed.device), persistent=False)
        self.bits = bits

    @property
    def weight(self) -> torch.Tensor:
        weight = self.dequantized()
        return weight.as_subclass(ReadOnlyWeight) if type(weight) is torch.Tensor else weight

    @property
    def dtype(self) -> torch.dtype:
        """Returns the number format that the layer computes in."""
        return self.scales.dtype

    def dequantized(self, packed: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the weight of the layer, or that in `packed`, as numbers of rows x columns."""
        packed = self.packed_weight if packed is None else packed
        return dequantize(packed, self.scales, self.biases, self.bits, self.shifts)


class MLXLinear(_Quantized, nn.Linear):  # type: ignore[override]
    """A linear layer on MLX's quantized weights, which are frozen.

    It is an `nn.Linear` so that PEFT finds it: adapters compute beside it.

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
        self._register_packed(packed, scales, biases, bits)
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias, requires_grad=False))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = _Product.apply(input, self.bias, self)
        return out

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, bits={self.bits}, group_size={self.in_features // self.scales.shape[1]}"


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, bias: torch.Tensor | None, layer: MLXLinear) -> torch.Tensor:
        ctx.layer, ctx.dtype = layer, input.dtype
        weight = layer.dequantized()
        if not torch.is_autocast_enabled(input.device.type):  # some code casts norms, and so all activations
            weight, bias = weight.to(input.dtype), None if bias is None else bias.to(input.dtype)
        return nn.functional.linear(input, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        of_input, of_bias, _ = ctx.needs_input_grad
        input_grad = torch.matmul(grad, ctx.layer.dequantized().to(grad.dtype)).to(ctx.dtype) if of_input else None
        bias_grad = grad.flatten(0, -2).sum(0).to(ctx.layer.bias.dtype) if of_bias else None
        return input_grad, bias_grad, None


class MLXEmbedding(_Quantized, nn.Embedding):  # type: ignore[override]
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
        self._register_packed(packed, scales, biases, bits)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        found = dequantize(self.packed_weight[input], self.scales[input], self.biases[input], self.bits, self.shifts)
        # rounded to the number format first, as Gemma's own layer does
        return found if self.factor is None else found * torch.tensor(self.factor, dtype=found.dtype).item()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, bits={self.bits}"
