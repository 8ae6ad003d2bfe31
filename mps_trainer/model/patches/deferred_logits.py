"""The loss of a language model without its logits, which are computed when something reads them.

A step of a language model needs most memory for its logits: with their float32 copy, softmax and gradient, four times
tokens x words. Where the model computes its own loss, the head returns a stand-in for them, and `cross_entropy` of it
computes the loss a few rows at a time. Any other operation computes the logits first.

The stand-in is a tensor to autograd, which records what is done with it as it does for plain logits. Only the numbers
come later. They are those that the head would have given: reading them is refused once its input or weight has
changed, and the first operation that changes logits computes them.

Gain, by `python -m benchmarks language`, beside transformers: a step of a Llama with 65,536 words and 2,048 tokens
needs 0.43 of the memory above the start, with LoRA 0.18, and 0.80 of the processor time, with LoRA 0.82.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from ...devices.known_faults import M1_AND_M2, is_chip
from ...devices.large_products import INNER, product
from ...training_args import TrainingArguments
from ...utils.attributes import attributes_replaced
from ..introspection import base_model
from ..mlx_layers import MLXLinear

# Bytes of float32 logits that exist at a time. Of the plain loss's processor time, for 512 rows of 512 numbers and
# 65,536 words, 32 MiB take 1.10 and 64 MiB 1.01; with a frozen head 1.25 and 1.04.
CHUNK = 64 * 2**20
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
    return head if type(head) in (nn.Linear, MLXLinear) and "forward" not in vars(head) else None


def has_large_logits(head: nn.Linear) -> bool:
    """Returns True if the logits of a step of usual size are larger than a chunk."""
    return 4 * head.out_features * _TOKENS > CHUNK


@contextlib.contextmanager
def logits_deferred(head: nn.Linear | None, device: torch.device, chip: str | None, defers: bool) -> Iterator[None]:
    """Makes `head` defer logits larger than a chunk in training mode inside.

    Args:
        chip: the Mac's. On those that compute long products wrong or slowly, the head's are split in any case.
        defers: False if other code than the model's computes the loss, because it may do anything with the logits.
    """
    if head is None:
        yield
        return
    defers = defers and has_large_logits(head)
    splits = device.type == "mps" and is_chip(chip, M1_AND_M2) and head.out_features >= INNER
    active = [head]  # neither copies of the head nor wrappers that others leave behind defer

    @functools.wraps(nn.Linear.forward)
    def forward(self: Any, input: torch.Tensor) -> torch.Tensor:
        size, kind = 4 * input.shape[:-1].numel() * self.out_features, input.device.type
        autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        is_plain = torch.compiler.is_compiling() or not (self.training and torch.is_grad_enabled())
        layer = Head.of(self, INNER - 1 if splits else None, autocast)
        fits = autocast is not None or input.dtype is layer.dtype  # if not, torch explains the mistake
        if is_plain or self not in active or not fits or size == 0 or not (splits or size > CHUNK):
            return type(self).forward(self, input)
        if not defers:
            return layer.logits(input)
        meta = torch.empty(*input.shape[:-1], self.out_features, dtype=layer.dtype, device="meta")
        return layer.logits(input, lambda: DeferredLogits(_Numbers(input, layer, layer.dtype), meta))

    try:
        with attributes_replaced([(head, "forward", MethodType(forward, head))] if defers or splits else ()):
            yield
    finally:
        active.clear()


class Head(NamedTuple):
    """A linear layer as it computes: in the number format of autocast, with products over at most `most_words` words.

    Args:
        weight: words x width.
        bias: one number for each word.
        most_words: words that one product may sum over. Default: all.
        autocast: the number format of autocast. Default: that of the weight.
        quantized: the layer that dequantizes `weight`. Default: it is not quantized.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    most_words: int | None = None
    autocast: torch.dtype | None = None
    quantized: MLXLinear | None = None

    @classmethod
    def of(cls, layer: Any, most_words: int | None, autocast: torch.dtype | None) -> Head:
        quantized = layer if isinstance(layer, MLXLinear) else None
        weight = layer.weight if quantized is None else quantized.packed_weight
        return cls(weight, layer.bias, most_words, autocast, quantized)

    @property
    def dtype(self) -> torch.dtype:
        """Returns the number format of the logits."""
        return self.autocast or (self.weight.dtype if self.quantized is None else self.quantized.dtype)

    def operands(self, hidden: torch.Tensor) -> list[Any]:
        """Returns input, weight and bias in one number format."""
        weight = self.numbers(self.weight)
        return [None if one is None else one.to(self.dtype) for one in (hidden, weight, self.bias)]

    def numbers(self, weight: torch.Tensor) -> torch.Tensor:
        """Returns the numbers of a weight, which may be quantized."""
        return weight if self.quantized is None else self.quantized.dequantized(weight)

    def logits(self, hidden: torch.Tensor, make: Callable[[], torch.Tensor] | None = None) -> torch.Tensor:
        """Returns the logits of `hidden`, or the stand-in for them that `make` makes, with the layer's gradients."""
        return _Linear.apply(hidden, self.weight, self.bias, self, make)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: Any, bias: Any, head: Head, make: Any) -> torch.Tensor:
        ctx.set_materialize_grads(False)  # stand-ins that were not read have no gradient
        learns_hidden, learns_weight, *_ = ctx.needs_input_grad
        # A layer saves what it needs, so that a frozen one allows later changes of its input.
        ctx.save_for_backward(hidden if learns_weight else None, weight if learns_hidden else None)
        ctx.most_words, ctx.dtype, ctx.numbers = head.most_words, head.dtype, head.numbers
        return make() if make is not None else nn.functional.linear(*head.operands(hidden))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> Any:
        (hidden, weight), needed = ctx.saved_tensors, ctx.needs_input_grad
        if grad is None:
            return None, None, None, None, None
        grad, of_hidden, of_weight = grad.to(ctx.dtype), None, None
        rows = grad.reshape(-1, grad.shape[-1])
        if needed[0]:
            of_hidden = product(rows, ctx.numbers(weight).to(ctx.dtype), ctx.most_words).view(*grad.shape[:-1], -1)
        if needed[1]:
            inputs = hidden.reshape(-1, hidden.shape[-1]).to(ctx.dtype)
            of_weight = product(rows.T, inputs, ctx.most_words)
        return of_hidden, of_weight, rows.sum(0) if needed[2] else None, None, None


class ChunkedCrossEntropy(torch.autograd.Function):
    """Computes `cross_entropy(head.logits(hidden).float(), target, **settings)` in float32.

    The gradients are computed with the loss, those of what requires one: none of a frozen weight. A second backward
    pass, and one with `create_graph=True`, compute all logits at once. Without a target that counts, the gradients are
    0, as torch's are. In bfloat16 the gradient of the weight is a sum of rounded sums, one for each chunk: of 64
    chunks its error is 0.5 %, without chunks 0.2 %.

    Args:
        hidden: rows x width.
        weight, bias: those of `head`, for their gradients.
        logits: a stand-in for the logits, rows x words. It gets the gradient in place of `hidden` and the layer when
            its `is_watched()` returns True, or when the gradient of nothing else is asked for.
        target: a word for each row, or `ignore_index`.
        settings: `ignore_index`, and `reduction`: "mean" over the rows that count, or "sum".
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Any, weight: Any, bias: Any, logits: Any, head: Head, target: Any, settings: dict[str, Any]
    ) -> torch.Tensor:
        ctx.save_for_backward(hidden, weight, bias, target)
        ctx.logits, ctx.settings = logits, settings
        ctx.head = head._replace(weight=None, bias=None)  # type: ignore[arg-type]
        hidden, weight, bias = head.operands(hidden)
        # In float16 a sum over rows may overflow, before a scaler could make it smaller.
        kind = torch.float32 if hidden.dtype is torch.float16 else hidden.dtype
        given = zip((hidden, weight, bias), (hidden.dtype, kind, kind), ctx.needs_input_grad, strict=False)
        grads = [torch.zeros_like(one, dtype=dtype) if needed else None for one, dtype, needed in given]
        counts = target.ne(settings["ignore_index"]).unsqueeze(1)
        share, words = counts.float(), torch.where(counts.squeeze(1), target, 0).unsqueeze(1)
        rows = hidden.masked_fill(~counts, 0)  # one that is ignored may hold anything
        size = 1 << (max(CHUNK // (4 * len(weight)), 1).bit_length() - 1)
        totals, at_targets = [], []
        for start in range(0, len(rows), size):
            part = slice(start, start + size)
            chunk = nn.functional.linear(rows[part], weight, bias).float()
            chunk.sub_(chunk.amax(1, keepdim=True))
            at_targets.append(chunk.gather(1, words[part]))
            totals.append(chunk.exp_().sum(1, keepdim=True))
            # the gradient of the logits in a sum of the losses: their softmax, less one at the target
            chunk.mul_(share[part] / totals[-1]).scatter_add_(1, words[part], -share[part])
            if grads[2] is not None:
                grads[2] += chunk.sum(0)
            of_logits = chunk.to(hidden.dtype)
            if grads[0] is not None:
                grads[0][part] = product(of_logits, weight, head.most_words)
            if grads[1] is not None:
                grads[1].addmm_(of_logits.T.to(kind), rows[part].to(kind))
            del chunk, of_logits  # before the next ones are made
        ctx.grads, number = grads, counts.sum()
        ctx.number = number if settings["reduction"] == "mean" else torch.ones_like(number)
        ctx.any_counts = number > 0
        return torch.where(counts, torch.cat(totals).log() - torch.cat(at_targets), 0).sum() / ctx.number

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        needed = ctx.needs_input_grad[:4]
        of_logits = needed[3] and (not any(needed[:3]) or ctx.logits.is_watched())
        if not (of_logits or ctx.grads is None or torch.is_grad_enabled()):
            grads, ctx.grads = ctx.grads, None
            # here, as a mean's gradients may be too small for float16 before they are scaled
            scale = torch.where(ctx.any_counts, grad / ctx.number, 0)
            return *(None if one is None else one.mul_(scale) for one in grads), None, None, None, None
        # the gradients of input, weight and bias, or of the logits, which can be differentiated again
        *inputs, target = ctx.saved_tensors
        with torch.enable_grad():
            logits = ctx.head._replace(weight=inputs[1], bias=inputs[2]).logits(inputs[0])
            if ctx.logits is not None:
                logits = logits.to(ctx.logits.dtype)
            loss = nn.functional.cross_entropy(logits.float(), target, **ctx.settings)
        asked = [False, False, False, True] if of_logits else [*needed[:3], False]
        sources = [one for one, is_asked in zip((*inputs, logits), asked, strict=True) if is_asked]
        found = iter(torch.autograd.grad(loss, sources, grad, create_graph=torch.is_grad_enabled()))
        return *(next(found) if is_asked else None for is_asked in asked), None, None, None


@dataclass
class _Numbers:
    """Holds the numbers of logits, which all their views share, or what they are computed from.

    Args:
        hidden: the input of the head, ... x width.
        dtype: the number format, in which a copy may differ from the head.
        steps: the views that were taken before the logits were copied.
        watchers: has elements if something waits for the gradient of the logits or of a copy of them.
    """

    hidden: torch.Tensor
    head: Head
    dtype: torch.dtype
    steps: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = ()
    versions: tuple[int, int] | None = None
    watchers: list[bool] = field(default_factory=list)
    computed: torch.Tensor | None = None

    def __post_init__(self) -> None:
        self.versions = self.versions or (self.hidden._version, self.head.weight._version)

    def compute(self) -> torch.Tensor:
        if self.computed is None:
            if (self.hidden._version, self.head.weight._version) != self.versions:
                raise RuntimeError(
                    "These logits are read after the input of their layer or its weight has changed, as a step of the "
                    "optimizer changes it. Read them before, or train with chunked_cross_entropy=False."
                )
            rows = _apply(self.steps, self.hidden)
            with torch.no_grad():
                self.computed = nn.functional.linear(*self.head.operands(rows)).to(self.dtype)
        return self.computed


class DeferredLogits(torch.Tensor):
    """The logits of a linear head, or a view of them, whose numbers are computed when an operation needs them.

    Args:
        numbers: what they are computed from.
        meta: a tensor of their shape, strides and number format on the meta device.
        steps: the views that make them from `numbers`.
    """

    _numbers: _Numbers
    _meta: torch.Tensor
    _steps: tuple[Callable[[torch.Tensor], torch.Tensor], ...]

    @staticmethod
    def __new__(cls, numbers: _Numbers, meta: torch.Tensor, steps: Any = ()) -> DeferredLogits:
        layout = meta.shape, meta.stride(), meta.storage_offset()
        made = torch.Tensor._make_wrapper_subclass(cls, *layout, dtype=meta.dtype, device=numbers.hidden.device)
        made._numbers, made._meta, made._steps = numbers, meta, steps
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func is nn.functional.cross_entropy:
                loss = _cross_entropy(*args, **kwargs)
                if loss is not None:
                    return loss
            elif func in _ASK_FOR_GRADIENT:
                for each in tree_leaves((args, kwargs)):
                    if isinstance(each, cls):
                        each._numbers.watchers.append(True)
            elif func in _READ_STORAGE:
                args, kwargs = tree_map_only(cls, torch.ops.aten.alias.default, (args, kwargs))
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (_VIEW, _SLICE, *_COPIES) and args[0]._numbers.computed is None:
            deferred = args[0]._deferred(func, args[1:], kwargs)
            if deferred is not None:
                return deferred
        if torch.Tag.inplace_view in func.tags or "_foreach_" in func.name():
            # autograd does not follow these in a stand-in
            raise NotImplementedError(
                f"The logits of a language model do not support {func.name()} while they are computed late. Use the "
                "operation that is not in place, or train with chunked_cross_entropy=False."
            )
        args, kwargs = tree_map_only(
            cls,
            lambda one: one._numbers.compute().as_strided(one.shape, one.stride(), one.storage_offset()),
            (args, kwargs),
        )
        return func(*args, **kwargs)

    def is_watched(self) -> bool:
        """Returns True if something waits for the gradient of the logits themselves."""
        return bool(self._numbers.watchers)

    def _deferred(self, func: Any, args: Any, kwargs: dict[str, Any]) -> DeferredLogits | None:
        """Returns what `func`, a view or a copy, makes of logits that are not computed; None if it has to compute."""
        is_copy = func in _COPIES
        others = kwargs.keys() - {"dtype", "memory_format"}
        if is_copy and (others or kwargs.get("dtype") not in (None, self.dtype, torch.float32)):
            return None  # losses want a copy in float32
        meta = func(self._meta, *args, **kwargs)
        if is_copy and meta.is_contiguous():
            steps = (*self._numbers.steps, *self._steps)
            return DeferredLogits(replace(self._numbers, dtype=meta.dtype, steps=steps), meta)
        if func is _SLICE and (not args or args[0] not in (-1, self.dim() - 1)):
            return DeferredLogits(self._numbers, meta, (*self._steps, lambda whole: func(whole, *args, **kwargs)))
        if func is _VIEW and meta.shape[-1:] == self.shape[-1:]:
            rows = meta.shape[:-1]
            return DeferredLogits(
                self._numbers, meta, (*self._steps, lambda whole: whole.reshape(*rows, whole.shape[-1]))
            )
        return None


def _apply(steps: Any, tensor: torch.Tensor) -> torch.Tensor:
    return functools.reduce(lambda made, step: step(made), steps, tensor)


def _cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor | None:
    """Returns the loss without logits; None where torch is to compute it."""
    others = weight is None and size_average is None and reduce is None and label_smoothing == 0
    if not others or not isinstance(input, DeferredLogits) or input.dim() != 2 or reduction not in ("mean", "sum"):
        return None
    if target.dtype is not torch.int64 or target.shape != input.shape[:1]:
        return None  # probabilities, or a mistake that torch explains
    if input.dtype is not torch.float32 and not torch.is_autocast_enabled(input.device.type):
        return None
    numbers = input._numbers
    if numbers.computed is not None or input.is_watched():
        return None
    rows = _apply((*numbers.steps, *input._steps), numbers.hidden)
    head, settings = numbers.head, {"ignore_index": ignore_index, "reduction": reduction}
    return ChunkedCrossEntropy.apply(rows, head.weight, head.bias, input, head, target, settings)


_VIEW, _SLICE = torch.ops.aten.view.default, torch.ops.aten.slice.Tensor
_COPIES = (torch.ops.aten.clone.default, torch.ops.aten._to_copy.default)
_TENSOR: Any = torch.Tensor
_ASK_FOR_GRADIENT = {torch.autograd.grad, _TENSOR.register_hook, _TENSOR.retain_grad, _TENSOR.grad_fn.__get__}
# These need memory, which only plain tensors have.
_READ_STORAGE = {
    getattr(torch.Tensor, name)
    for name in (
        *("numpy", "tolist", "data_ptr", "untyped_storage", "storage", "__array__", "__dlpack__", "__repr__"),
        *("__format__", "__reduce_ex__", "__deepcopy__"),
    )
}
