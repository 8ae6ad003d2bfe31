"""Logits of a language model that are computed when something reads them, which the loss does not.

A step of a language model needs most memory for its logits: with their float32 copy, softmax and gradient, four times
tokens x words. Where the model computes its own loss, the head returns a stand-in for them, and
`cross_entropy` of it computes the loss a few rows at a time. Any other operation computes the logits first.

The stand-in is a tensor to autograd, which records what is done with it as it does for plain logits. Only the numbers
come later. They are those that the head would have given: reading them is refused once its input or weight has
changed, and the first operation that changes logits computes them.

Gain, by `python -m benchmarks language`, beside transformers: a step of a Llama with 65,536 words and 2,048 tokens
needs 0.43 of the memory above the start, with LoRA 0.18, and 0.80 of the processor time, with LoRA 0.82.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from ...devices.large_products import INNER, concerns
from ...training_args import TrainingArguments
from ...utils.overrides import Overrides
from ..chunked_cross_entropy import CHUNK, Head, chunked_cross_entropy
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


class _Mode(NamedTuple):
    """Says how a head computes in a run: whether it defers logits, and over how many words a product may sum."""

    defers: bool
    most_words: int | None


_heads: WeakKeyDictionary[nn.Module, _Mode] = WeakKeyDictionary()


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
        if autocast is None and input.dtype is not self.weight.dtype:
            return super().forward(input)  # torch explains the mistake
        head = Head(self.weight, self.bias, how.most_words, autocast)
        if not how.defers:
            return head.logits(input)
        numbers = _Numbers(input, head, head.dtype, (input._version, self.weight._version))
        meta = torch.empty(*input.shape[:-1], self.out_features, dtype=head.dtype, device="meta")
        return head.with_gradients(input, lambda: DeferredLogits(numbers, meta))

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
    _heads[head] = _Mode(defers, INNER - 1 if faulty else None)
    head.__class__ = DeferringLinear
    try:
        yield
    finally:
        head.__class__ = nn.Linear
        del _heads[head]


@dataclass
class _Numbers:
    """Holds the numbers of logits, which all their views share, or how to compute them.

    Args:
        hidden: the input of the head, ... x width.
        dtype: the number format, in which a copy may differ from the head.
        versions: those of input and weight, which show that they have changed.
        steps: the views that were taken before the logits were copied.
        original: the numbers of which these are a copy.
    """

    hidden: torch.Tensor
    head: Head
    dtype: torch.dtype
    versions: tuple[int, int]
    steps: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = ()
    original: _Numbers | None = None
    watched: bool = False
    computed: torch.Tensor | None = None

    def compute(self) -> torch.Tensor:
        if self.computed is None:
            if (self.hidden._version, self.head.weight._version) != self.versions:
                raise RuntimeError(
                    "These logits are read after the input of their layer or its weight has changed, as a step of the "
                    "optimizer changes it. Read them before, or train with chunked_cross_entropy=False."
                )
            with torch.no_grad():
                self.computed = nn.functional.linear(*self.head.operands(self.rows())).to(self.dtype)
        return self.computed

    def rows(self) -> torch.Tensor:
        """Returns the input of the head for these logits, ... x width."""
        return _apply(self.steps, self.hidden)

    def is_watched(self) -> bool:
        return self.watched or (self.original is not None and self.original.is_watched())


class DeferredLogits(torch.Tensor):
    """The logits of a linear head, or a view of them, whose numbers are computed when an operation needs them.

    Args:
        numbers: what they are computed from.
        meta: a tensor of their shape, strides and number format on the meta device.
        steps: the views that make them from `numbers`.
    """

    _numbers: _Numbers
    _steps: tuple[Callable[[torch.Tensor], torch.Tensor], ...]

    @staticmethod
    def __new__(cls, numbers: _Numbers, meta: torch.Tensor, steps: Any = ()) -> DeferredLogits:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            meta.shape,
            meta.stride(),
            meta.storage_offset(),
            dtype=meta.dtype,
            device=numbers.hidden.device,
        )
        made._numbers, made._steps = numbers, steps
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
                        each._numbers.watched = True
            elif func in _READ_STORAGE:
                args, kwargs = tree_map_only(cls, torch.ops.aten.alias.default, (args, kwargs))
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DEFERRED and args[0]._numbers.computed is None:
            deferred = _DEFERRED[func](*args, **kwargs)
            if deferred is not None:
                return deferred
        stand_ins = {}

        def plain(logits: DeferredLogits) -> torch.Tensor:
            found = logits._plain()
            stand_ins[id(found)] = logits, found
            return found

        if torch.Tag.inplace_view in func.tags or "_foreach_" in func.name():
            # autograd does not follow these in a stand-in
            raise NotImplementedError(
                f"The logits of a language model do not support {func.name()} while they are computed late. Use the "
                "operation that is not in place, or train with chunked_cross_entropy=False."
            )
        args, kwargs = tree_map_only(cls, plain, (args, kwargs))
        result = func(*args, **kwargs)
        # what changes logits in place returns them
        return tree_map_only(torch.Tensor, lambda one: stand_ins.get(id(one), (one,))[0], result)

    def is_watched(self) -> bool:
        """Returns True if something waits for the gradient of the logits themselves."""
        return self._numbers.is_watched()

    def _plain(self) -> torch.Tensor:
        return self._numbers.compute().as_strided(self.shape, self.stride(), self.storage_offset())


def _apply(steps: Any, tensor: torch.Tensor) -> torch.Tensor:
    return functools.reduce(lambda made, step: step(made), steps, tensor)


def _meta(logits: DeferredLogits) -> torch.Tensor:
    made = torch.empty(0, dtype=logits.dtype, device="meta")
    return made.as_strided(logits.shape, logits.stride(), logits.storage_offset())


def _view(logits: DeferredLogits, sizes: Any) -> DeferredLogits | None:
    meta = torch.ops.aten.view.default(_meta(logits), sizes)
    if meta.shape[-1:] != logits.shape[-1:]:
        return None
    rows = meta.shape[:-1]
    return DeferredLogits(logits._numbers, meta, (*logits._steps, lambda whole: whole.reshape(*rows, whole.shape[-1])))


def _slice(logits: DeferredLogits, dim: int = 0, *limits: Any) -> DeferredLogits | None:
    if dim in (-1, logits.dim() - 1):
        return None
    take = functools.partial(_taken, dim=dim, limits=limits)
    return DeferredLogits(logits._numbers, take(_meta(logits)), (*logits._steps, take))


def _taken(whole: torch.Tensor, dim: int, limits: Any) -> torch.Tensor:
    return torch.ops.aten.slice.Tensor(whole, dim, *limits)


def _copy(logits: DeferredLogits, **kwargs: Any) -> DeferredLogits | None:
    """Returns a copy in the same number format or, as losses want it, in float32."""
    dtype = kwargs.pop("dtype", None) or logits.dtype
    memory_format = kwargs.pop("memory_format", None) or torch.preserve_format
    meta = torch.clone(_meta(logits), memory_format=memory_format).to(dtype)
    if kwargs or dtype not in (logits.dtype, torch.float32) or not meta.is_contiguous():
        return None
    whole = logits._numbers
    numbers = _Numbers(whole.hidden, whole.head, dtype, whole.versions, (*whole.steps, *logits._steps), whole)
    return DeferredLogits(numbers, meta)


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
    rows = _apply(input._steps, numbers.rows())
    settings: dict[str, Any] = {"ignore_index": ignore_index, "reduction": reduction, "logits": input}
    return chunked_cross_entropy(rows, numbers.head, target, **settings)


_DEFERRED: dict[Any, Callable[..., DeferredLogits | None]] = {
    torch.ops.aten.view.default: _view,
    torch.ops.aten.slice.Tensor: _slice,
    torch.ops.aten.clone.default: _copy,
    torch.ops.aten._to_copy.default: _copy,
}
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
