"""Follows the memory of a step by the storages that its operators make."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import flop_registry

from ...errors import MisconfigurationException
from ...utils.nested import tensors_in
from ..check.tracer import has_own_dispatch
from .known_values import are_known, computed, fake_with_values, keep_values, spoil, values_of

WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, LOGITS = "weights", "gradients", "optimizer", "activations", "logits"
KINDS = (WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, LOGITS)
_ATEN = torch.ops.aten


class MemoryTracker(TorchDispatchMode):
    """Counts the bytes of the fake tensors that exist while it is active, by what they are for.

    A storage is counted from the operator that returns it until it is freed. What an operator allocates and frees
    inside itself is not seen, and neither is what the allocator keeps. Real tensors stay real and are not counted. A
    step that reads a number from a fake tensor gets its value where the batch decides it (`known_values`); else 1,
    True for `all()` and False for another condition. A mask that is not known picks all elements.

    Args:
        words: the size of the vocabulary. New tensors with it as their last dimension are logits.

    Attributes:
        kind: what new storages are for; activations in the beginning.
        now: the bytes by kind that exist.
        peak: the same at the moment when most existed.
        operations: additions and multiplications of matrix products and convolutions.
    """

    def __init__(self, words: int | None = None) -> None:
        super().__init__()
        self.kind = ACTIVATIONS
        self.peak: dict[str, int] = {}
        self.operations = 0.0
        self._repeats = 1.0  # the number of blocks that the one at hand stands for
        self._words = words
        self.now: Counter[str] = Counter()
        self._storages: dict[int, tuple[str, int, weakref.ref]] = {}  # kind and bytes, by the storage's address

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):  # a third of all calls
            return args[0].fake_device
        if any(kind is not FakeTensor and has_own_dispatch(kind) for kind in types):
            return NotImplemented  # the tensor subclass first says what it is made of
        result = self._run(func, args, kwargs or {})
        for each in tensors_in(result):
            if isinstance(each, FakeTensor):
                is_logits = self.kind is ACTIVATIONS and each.dim() and each.shape[-1] == self._words
                self._count(each, LOGITS if is_logits else self.kind)
        return result

    def _run(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        given = tensors_in((args, kwargs))
        if given and not any(isinstance(each, FakeTensor) for each in given):
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        known = (bool(given) or _takes_device(func)) and are_known(func, given)
        if func in _WITHOUT_VALUES:
            if not known:
                return _WITHOUT_VALUES[func](*args, **kwargs)
            return tree_map_only(torch.Tensor, fake_with_values, computed(func, args, kwargs))
        result = func(*args, **kwargs)
        if (count := _operations_of(func)) is not None:
            self.operations += self._repeats * count(*args, **kwargs, out_val=result)
        if known:
            keep_values(func, args, kwargs, result)
        elif func._schema.is_mutable:
            spoil(func, args)
        return result

    def first_and_last(self, length: int, size: int) -> Iterator[slice]:
        """Yields the first and the last block of `size`, in place of `blocks.slices`.

        No other block takes more memory. Their operations stand for all: under a causal mask they grow evenly.
        """
        chosen, all_blocks = sorted({0, (length - 1) // size * size}), -(-length // size)
        before, self._repeats = self._repeats, self._repeats * all_blocks / len(chosen)
        yield from (slice(start, min(start + size, length)) for start in chosen)
        self._repeats = before

    def belongs(self, tensors: Iterable[torch.Tensor], kind: str) -> None:
        """Counts these tensors as of this kind, also those that were counted as of another."""
        for tensor in tensors:
            key = tensor.untyped_storage()._cdata
            if key in self._storages:
                old, size, reference = self._storages[key]
                self._storages[key] = kind, size, reference
                self.now[old] -= size
                self.now[kind] += size
            else:
                self._count(tensor, kind)

    def forget_peak(self) -> None:
        """Begins again with what exists now."""
        self.peak = dict(self.now)

    def _count(self, tensor: torch.Tensor, kind: str) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._storages or tensor.device.type == "meta":  # the stand-ins of deferred logits need no memory
            return
        self._storages[key] = kind, storage.nbytes(), weakref.ref(storage, lambda _: self._freed(key))
        self.now[kind] += storage.nbytes()
        if self.now.total() > sum(self.peak.values()):
            self.forget_peak()

    def _freed(self, key: int) -> None:
        kind, size, _ = self._storages.pop(key)
        self.now[kind] -= size


@cache
def _operations_of(func: Any) -> Callable[..., int] | None:
    """Returns torch's count of operations for an operator, also for one in place; None for other operators."""
    packet = func._overloadpacket
    return flop_registry.get(packet) or flop_registry.get(getattr(_ATEN, packet.__name__.removesuffix("_"), None))


@cache
def _takes_device(func: Any) -> bool:
    return any(argument.name == "device" for argument in func._schema.arguments)


def _number(tensor: torch.Tensor) -> bool | int | float:
    return False if tensor.dtype is torch.bool else 1.0 if tensor.is_floating_point() else 1


def _nonzero(tensor: torch.Tensor) -> torch.Tensor:
    return _ATEN.new_empty.default(tensor, [tensor.numel(), tensor.dim()], dtype=torch.int64)


def _masked_select(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    shape = torch.broadcast_shapes(tensor.shape, mask.shape)
    return _ATEN.new_empty.default(tensor, [shape.numel()])


def _index(tensor: torch.Tensor, indices: list[torch.Tensor | None]) -> torch.Tensor:
    whole: list[torch.Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            whole.append(index)
        else:  # a mask stands for as many indices as it has dimensions
            values = values_of(index)
            with unset_fake_temporarily():
                picked = index.numel() if values is None else int(values.count_nonzero())
            whole += [_ATEN.new_empty.default(index, [picked], dtype=torch.int64) for _ in index.shape]
    return _ATEN.index.Tensor(tensor, whole)


def _all(tensor: torch.Tensor) -> torch.Tensor:
    """Returns True, because models ask `all()` of computed values to check them, and raise an error otherwise."""
    with unset_fake_temporarily():
        return torch.ones((), dtype=torch.bool)


def _ctc_loss(
    scores: torch.Tensor, labels: torch.Tensor, _: torch.Tensor, lengths: torch.Tensor, *args: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    values = values_of(lengths)
    with unset_fake_temporarily():
        longest = labels.shape[-1] if values is None else int(values.max())
    steps, batch = scores.shape[:2]
    alpha = _ATEN.new_empty.default(scores, [batch, steps, 2 * longest + 1])
    return _ATEN.new_empty.default(scores, [batch]), alpha


def _not_known(*args: Any, **kwargs: Any) -> Any:
    raise MisconfigurationException(
        "The step makes tensors whose size depends on the values in others, so its memory cannot be computed without "
        "training. On Linux, `mps-trainer simulate` measures it in a run."
    )


# The results of these depend on values, which fake tensors do not have.
_WITHOUT_VALUES: dict[Any, Callable[..., Any]] = {
    _ATEN._local_scalar_dense.default: _number,
    _ATEN.nonzero.default: _nonzero,
    _ATEN.masked_select.default: _masked_select,
    _ATEN.index.Tensor: _index,
    _ATEN.all.default: _all,
    _ATEN._ctc_loss.Tensor: _ctc_loss,
    _ATEN._ctc_loss_backward.Tensor: lambda _, scores, *args: _ATEN.empty_like.default(scores),
    _ATEN.equal.default: lambda *_: False,
    _ATEN._unique2.default: _not_known,
    _ATEN.unique_dim.default: _not_known,
    _ATEN.unique_consecutive.default: _not_known,
    _ATEN.repeat_interleave.Tensor: _not_known,
}
