"""Logits of a language model that are computed when somebody reads them, which the loss does not.

The logits are what a step of a language model needs most memory for: with their float32 copy, softmax and gradient
four times tokens x words. In training, the head returns a stand-in for them, and `cross_entropy` of it computes the
loss a few rows at a time. Everything else that is done with it computes the logits first, so that a loss or a metric
of one's own gets what it would have got.

Gain, by `python -m benchmarks language`, beside transformers: a step of a Llama with 65,536 words and 2,048 tokens
needs 0.46 of the memory above the start and 0.71 of the processor time; with LoRA 0.22 and 0.86.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_map_only

from ...devices.large_products import INNER, concerns
from ...training_args import TrainingArguments
from ..chunked_cross_entropy import CHUNK, chunked_cross_entropy, product
from ..introspection import base_model


def deferring_head(model: nn.Module, args: TrainingArguments, is_distributed: bool) -> nn.Linear | None:
    """Returns the layer of a language model whose logits may be deferred; None if they may not.

    They are not with `chunked_cross_entropy=False`, in a model that is compiled or one of several replicas, and where
    the head is no plain linear layer.
    """
    if is_distributed or args.torch_compile or not args.chunked_cross_entropy:
        return None
    head = getattr(base_model(model), "get_output_embeddings", lambda: None)()
    return head if type(head) is nn.Linear and "forward" not in vars(head) else None


@contextlib.contextmanager
def logits_deferred(head: nn.Linear | None, device: torch.device, chip: str | None) -> Iterator[None]:
    """Makes `head` return deferred logits inside, in training mode, where they are larger than a chunk.

    Args:
        chip: the Mac's. Those that compute long products wrong get deferred logits of any size.
    """
    if head is None:
        yield
        return
    plain = head.forward
    faulty = device.type == "mps" and concerns(torch.__version__, chip)
    most_words = INNER - 1 if faulty and head.out_features >= INNER else None

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        size = 4 * hidden.shape[:-1].numel() * head.out_features
        if not (head.training and torch.is_grad_enabled()) or (size <= CHUNK and most_words is None):
            return plain(hidden)
        kind = hidden.device.type
        autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        return DeferredLogits(hidden, _Layer(head.weight, head.bias, most_words, autocast))

    head.forward = forward  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        del head.forward


class _Layer(NamedTuple):
    """A linear head as it computes: in the format of autocast, with products over at most `most_words` words."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    most_words: int | None
    autocast: torch.dtype | None

    def operands(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Returns the three in one format."""
        dtype = self.autocast or self.weight.dtype
        return hidden.to(dtype), self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype)


class _Logits(torch.autograd.Function):
    """Logits, or a stand-in for them, with the gradients of a linear layer."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: Any, bias: Any, layer: _Layer, make: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        ctx.save_for_backward(hidden)
        ctx.layer = layer
        return make()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        hidden, weight, bias = ctx.layer.operands(*ctx.saved_tensors)
        needed, rows = ctx.needs_input_grad, grad.reshape(-1, grad.shape[-1]).to(weight.dtype)
        of_hidden = product(rows, weight, ctx.layer.most_words).view_as(hidden) if needed[0] else None
        of_weight = rows.T @ hidden.reshape(-1, hidden.shape[-1]) if needed[1] else None
        of_bias = rows.sum(0) if bias is not None and needed[2] else None
        return of_hidden, of_weight, of_bias, None, None


class DeferredLogits(torch.Tensor):
    """The logits of a linear head, which are not computed before they are read.

    Args:
        hidden: what the head was given, ... x width.
        layer: the head.
        cast: the format of the logits. Default: that of the head.
    """

    _hidden: torch.Tensor
    _logits: torch.Tensor | None
    _cast: torch.dtype | None
    _layer: _Layer

    @staticmethod
    def __new__(cls, hidden: torch.Tensor, layer: _Layer, cast: torch.dtype | None = None) -> DeferredLogits:
        def make() -> torch.Tensor:
            shape, dtype = (*hidden.shape[:-1], len(layer.weight)), cast or layer.autocast or layer.weight.dtype
            return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=hidden.device)

        # what goes past __torch_function__, as an autograd function's arguments do, has a gradient too
        made: Any = _Logits.apply(hidden, layer.weight, layer.bias, layer, make)
        made._hidden, made._layer, made._cast, made._logits = hidden, layer, cast, None
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func in _DEFERRED and isinstance(args[0] if args else None, cls):
            result = _DEFERRED[func](*args, **kwargs)
            if result is not None:
                return result
        args, kwargs = tree_map_only(cls, cls._computed, (args, kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Is for what goes past the above, such as an autograd function's arguments."""
        args, kwargs = tree_map_only(cls, cls._computed, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _computed(self) -> torch.Tensor:
        """Returns the logits, computed once where gradients are."""
        if self._logits is not None:
            return self._logits
        layer = self._layer

        def make() -> torch.Tensor:
            logits = nn.functional.linear(*layer.operands(self._hidden))
            return logits if self._cast is None else logits.to(self._cast)

        logits = _Logits.apply(self._hidden, layer.weight, layer.bias, layer, make)
        if torch.is_grad_enabled():
            self._logits = logits
        return logits

    def _in_float32(self) -> DeferredLogits:
        return self if self.dtype is torch.float32 else DeferredLogits(self._hidden, self._layer, torch.float32)


def _to(logits: DeferredLogits, *args: Any, **kwargs: Any) -> DeferredLogits | None:
    return logits._in_float32() if args == (torch.float32,) and not kwargs else None


def _reshaped(logits: DeferredLogits, *shape: Any) -> DeferredLogits | None:
    sizes = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
    if not sizes or sizes[-1] != logits.shape[-1] or logits._logits is not None:
        return None
    hidden = logits._hidden
    return DeferredLogits(hidden.reshape(*sizes[:-1], hidden.shape[-1]), logits._layer, logits._cast)


def _indexed(logits: DeferredLogits, index: Any) -> DeferredLogits | None:
    parts = index if isinstance(index, tuple) else (index,)
    plain = all(part is ... or isinstance(part, (slice, int)) for part in parts)
    to_the_last = ... in parts or len(parts) == logits.dim()
    if not plain or (to_the_last and parts[-1] != slice(None)) or logits._logits is not None:
        return None
    return DeferredLogits(logits._hidden[index], logits._layer, logits._cast)


def _cross_entropy(
    logits: DeferredLogits,
    target: torch.Tensor,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor | None:
    others = weight is None and size_average is None and reduce is None and label_smoothing == 0
    if not others or logits.dim() != 2 or target.is_floating_point() or reduction not in ("mean", "sum"):
        return None
    in_float32 = logits.dtype is torch.float32 or torch.is_autocast_enabled(logits.device.type)
    if not in_float32 or logits._logits is not None:
        return None
    layer = logits._layer
    settings: dict[str, Any] = {"ignore_index": ignore_index, "reduction": reduction, "most_words": layer.most_words}
    return chunked_cross_entropy(*layer.operands(logits._hidden), target, **settings)


_DEFERRED: dict[Any, Callable[..., Any]] = {
    torch.Tensor.float: DeferredLogits._in_float32,
    torch.Tensor.to: _to,
    torch.Tensor.contiguous: lambda logits: logits,
    torch.Tensor.view: _reshaped,
    torch.Tensor.reshape: _reshaped,
    torch.Tensor.__getitem__: _indexed,
    nn.functional.cross_entropy: _cross_entropy,
}
_METADATA: set[Any] = {
    *(getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "layout", "is_sparse")),
    *(getattr(torch.Tensor, name) for name in ("size", "dim", "numel", "is_floating_point", "__len__")),
}
