"""Logits of a language model that are computed when somebody reads them, which the loss does not.

The logits are what a step of a language model needs most memory for: with their float32 copy, softmax and gradient
four times tokens x words. Where the model computes its own loss, the head returns a stand-in for them, and
`cross_entropy` of it computes the loss a few rows at a time. Everything else that the model does with it computes the
logits first.

Gain, by `python -m benchmarks language`, beside transformers: a step of a Llama with 65,536 words and 2,048 tokens
needs 0.43 of the memory above the start, with LoRA 0.18, and 0.80 of the processor time, with LoRA 0.82.
"""

from __future__ import annotations

import contextlib
import copyreg
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_map_only

from ...devices.large_products import INNER, concerns
from ...overrides import Overrides
from ...training_args import TrainingArguments
from ..chunked_cross_entropy import CHUNK, chunked_cross_entropy, product
from ..introspection import base_model

_TOKENS = 2048  # a step that has fewer needs little memory


def deferring_head(model: nn.Module, args: TrainingArguments, is_distributed: bool) -> nn.Linear | None:
    """Returns the layer of a language model whose logits may be deferred; None if they may not.

    They are not with `chunked_cross_entropy=False`, in a model that is compiled or one of several replicas, and where
    the head is no plain linear layer.
    """
    if is_distributed or args.torch_compile or not args.chunked_cross_entropy:
        return None
    try:
        head = base_model(model).get_output_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    return head if type(head) is nn.Linear and "forward" not in vars(head) else None


class _Head(NamedTuple):
    """Says how a head computes in a run: whether it defers logits, and over how many words a product may sum."""

    defers: bool
    most_words: int | None


_heads: WeakKeyDictionary[nn.Module, _Head] = WeakKeyDictionary()


class DeferringLinear(nn.Linear):
    """A head that defers its logits in training mode, where they are larger than a chunk."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        how = _heads.get(self)
        if how is None or torch.compiler.is_compiling() or not (self.training and torch.is_grad_enabled()):
            return super().forward(input)
        size = 4 * input.shape[:-1].numel() * self.out_features
        if size == 0 or (how.most_words is None and (size <= CHUNK or not how.defers)):
            return super().forward(input)
        kind = input.device.type
        autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        layer = _Layer(self.weight, self.bias, how.most_words, autocast)
        return DeferredLogits(input, layer) if how.defers else _computed(input, layer)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Makes copies, and what is saved of a model during a run, `nn.Linear`s."""
        return copyreg._reconstructor, (nn.Linear, object, None), self.__dict__  # type: ignore[attr-defined]


@contextlib.contextmanager
def logits_deferred(
    head: nn.Linear | None, device: torch.device, chip: str | None, model_computes_loss: bool, overrides: Overrides
) -> Iterator[None]:
    """Makes `head` a DeferringLinear inside, if nobody but the model itself has its logits.

    Args:
        chip: the Mac's. On those that compute long products wrong, the head's are split in any case.
        model_computes_loss: False if a function of the Trainer's computes the loss from the logits.
        overrides: a `compute_loss` of a subclass may do anything with the logits.
    """
    if head is None:
        yield
        return
    is_large = 4 * head.out_features * _TOKENS > CHUNK
    defers = is_large and model_computes_loss and overrides.allow("the loss without logits", "compute_loss")
    faulty = device.type == "mps" and concerns(torch.__version__, chip) and head.out_features >= INNER
    if not (defers or faulty):
        yield
        return
    _heads[head] = _Head(defers, INNER - 1 if faulty else None)
    head.__class__ = DeferringLinear
    try:
        yield
    finally:
        head.__class__ = nn.Linear
        del _heads[head]


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
        ctx.save_for_backward(hidden, weight, bias)  # torch refuses a weight that has changed since
        ctx.layer = layer
        return make()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        hidden, weight, bias = ctx.saved_tensors
        hidden, weight, bias = ctx.layer._replace(weight=weight, bias=bias).operands(hidden)
        needed, rows = ctx.needs_input_grad, grad.reshape(-1, grad.shape[-1]).to(weight.dtype)
        of_hidden = product(rows, weight, ctx.layer.most_words).view_as(hidden) if needed[0] else None
        of_weight = rows.T @ hidden.reshape(-1, hidden.shape[-1]) if needed[1] else None
        of_bias = rows.sum(0) if bias is not None and needed[2] else None
        return of_hidden, of_weight, of_bias, None, None


def _computed(hidden: torch.Tensor, layer: _Layer) -> torch.Tensor:
    """Returns the logits, with gradients of products over few words if long ones are wrong."""

    def make() -> torch.Tensor:
        return nn.functional.linear(*layer.operands(hidden))

    return make() if layer.most_words is None else _Logits.apply(hidden, layer.weight, layer.bias, layer, make)


class DeferredLogits(torch.Tensor):
    """The logits of a linear head, which are not computed before they are read.

    Args:
        hidden: what the head was given, ... x width.
        layer: the head.
        cast: the format of the logits. Default: that in which the head computes.
        base: the deferred logits of which these are a part, in another shape or another format.
        part: makes these of the base's, once they are computed.
    """

    _hidden: torch.Tensor
    _cast: torch.dtype | None
    _layer: _Layer
    _weight_version: int
    _logits: torch.Tensor | None
    _base_logits: DeferredLogits | None
    _part: Callable[[torch.Tensor], torch.Tensor] | None

    @staticmethod
    def __new__(
        cls,
        hidden: torch.Tensor,
        layer: _Layer,
        cast: torch.dtype | None = None,
        base: DeferredLogits | None = None,
        part: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> DeferredLogits:
        def make() -> torch.Tensor:
            shape, dtype = (*hidden.shape[:-1], len(layer.weight)), cast or layer.autocast or layer.weight.dtype
            return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=hidden.device)

        # what goes past __torch_function__, as an autograd function's arguments do, has a gradient too
        made: Any = _Logits.apply(hidden, layer.weight, layer.bias, layer, make)
        made._hidden, made._layer, made._cast, made._logits = hidden, layer, cast, None
        made._base_logits, made._part, made._weight_version = base, part, layer.weight._version
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func in _DEFERRED and isinstance(args[0] if args else None, cls) and not args[0]._is_computed():
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

    def _is_computed(self) -> bool:
        return self._logits is not None or (self._base_logits is not None and self._base_logits._is_computed())

    def _computed(self) -> torch.Tensor:
        """Returns the logits, computed once, so that what changes them in place changes them for all."""
        if self._logits is None:
            with torch.enable_grad():
                whole = None if self._base_logits is None else self._base_logits._computed()
                self._logits = self._first() if whole is None or self._part is None else self._part(whole)
        return self._logits

    def _first(self) -> torch.Tensor:
        if self._layer.weight._version != self._weight_version:
            raise RuntimeError(
                "These logits are read after the step that they belong to: the weights have changed since. Read them "
                "before, or train with chunked_cross_entropy=False."
            )
        return _computed(self._hidden, self._layer)


def _in_float32(logits: DeferredLogits, **kwargs: Any) -> DeferredLogits | None:
    if kwargs:
        return None
    if logits.dtype is torch.float32:
        return logits
    return DeferredLogits(logits._hidden, logits._layer, torch.float32, logits, torch.Tensor.float)


def _to(logits: DeferredLogits, *args: Any, **kwargs: Any) -> DeferredLogits | None:
    return _in_float32(logits) if args == (torch.float32,) and not kwargs else None


def _contiguous(logits: DeferredLogits, **kwargs: Any) -> DeferredLogits | None:
    return None if kwargs else logits


def _reshaped(logits: DeferredLogits, *shape: Any, **kwargs: Any) -> DeferredLogits | None:
    sizes = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    plain = sizes and all(isinstance(size, int) for size in sizes) and not kwargs
    if not plain or sizes[-1] != logits.shape[-1]:
        return None
    hidden = logits._hidden.reshape(*sizes[:-1], logits._hidden.shape[-1])
    return DeferredLogits(hidden, logits._layer, logits._cast, logits, lambda whole: whole.reshape(sizes))


def _indexed(logits: DeferredLogits, index: Any) -> DeferredLogits | None:
    parts = index if isinstance(index, tuple) else (index,)
    plain = all(part is ... or isinstance(part, (slice, int)) for part in parts)
    to_the_last = ... in parts or len(parts) == logits.dim()
    if not plain or (to_the_last and parts[-1] != slice(None)):
        return None
    return DeferredLogits(logits._hidden[index], logits._layer, logits._cast, logits, lambda whole: whole[index])


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
    if not others or logits.dim() != 2 or reduction not in ("mean", "sum"):
        return None
    if target.dtype is not torch.int64 or target.shape != logits.shape[:1]:
        return None  # probabilities, or a mistake that torch explains
    if logits.dtype is not torch.float32 and not torch.is_autocast_enabled(logits.device.type):
        return None
    layer = logits._layer
    settings: dict[str, Any] = {"ignore_index": ignore_index, "reduction": reduction, "most_words": layer.most_words}
    return chunked_cross_entropy(*layer.operands(logits._hidden), target, **settings)


_DEFERRED: dict[Any, Callable[..., Any]] = {
    torch.Tensor.float: _in_float32,
    torch.Tensor.to: _to,
    torch.Tensor.contiguous: _contiguous,
    torch.Tensor.view: _reshaped,
    torch.Tensor.reshape: _reshaped,
    torch.Tensor.__getitem__: _indexed,
    nn.functional.cross_entropy: _cross_entropy,
}
_METADATA: set[Any] = {
    *(getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "layout", "is_sparse")),
    *(getattr(torch.Tensor, name) for name in ("size", "dim", "numel", "is_floating_point", "__len__")),
}
