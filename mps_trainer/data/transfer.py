"""Moves a batch to the device in one copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence
from transformers import BatchEncoding, BatchFeature

from ..devices.facts import parse_version
from ..model.number_formats import REFUSED_ON_MPS
from ..utils.nested import map_tensors, tensors_in
from ..utils.packed_texts import remember_texts
from ..utils.text_layout import layout_of, layouts_in, record_layout

_ALIGNED = 16  # bytes: where a tensor begins in the buffer that holds all of them; any number format may begin there


class BatchTransfer:
    """Moves batches to `device`: the tensors of one that are in host memory in a single copy.

    Each copy on its own costs its launch, and on mps it waits for all that is queued. The copy here does not wait:
    torch keeps its host memory until it is made. Over CUDA that must be pinned memory. On mps torch keeps any host
    memory, from 2.13 on (pytorch pull request 181017); pinned memory there saves nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._non_blocking = device.type == "cuda" or (
            device.type == "mps" and parse_version(torch.__version__) >= (2, 13)
        )

    def __call__(self, data: Any) -> Any:
        """Returns `data` with every tensor in it on the device; dictionaries, lists and tuples keep their type.

        An object with a method `to`, even a container, is moved by that method, as Accelerate moves a batch of
        graphs: torch's packed sequence leaves its lengths on the host. On mps, which has no float64 and complex128,
        such tensors become float32 and complex64: NumPy makes the former of Python's floats.

        Raises:
            TypeError: for a nested tensor that the device does not take.
        """
        device = self.device

        def is_leaf(value: Any) -> bool:  # a whole batch is a container: compute_loss takes labels out of its copy
            return not (value is data and isinstance(value, Mapping)) and _moves_itself(value)

        if device.type == "cpu":
            on_cpu = map_tensors(data, lambda tensor: tensor.to(device), is_leaf=is_leaf)
            remember_texts(data, on_cpu)
            return on_cpu
        packable = [tensor for tensor in tensors_in(data, is_leaf) if _packs(tensor)]
        packable += [each for _, layout in layouts_in(data) for each in layout.tensors if _packs(each)]
        moved = dict(zip(map(id, packable), self._move(packable), strict=True)) if packable else {}

        def move(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) in moved:
                copy = moved[id(tensor)]
                if (layout := layout_of(tensor)) is not None:
                    record_layout(copy, layout.with_tensors([moved[id(each)] for each in layout.tensors]))
                return copy
            if tensor.is_nested and tensor.layout == torch.strided and device.type == "mps":
                raise TypeError(
                    "A batch has a nested tensor with layout=torch.strided, which torch cannot copy to mps. Use "
                    "torch.nested.nested_tensor(..., layout=torch.jagged)."
                )
            return tensor.to(device, _dtype_on(device, tensor), non_blocking=device.type == "cuda")

        def move_other(each: Any) -> Any:
            dtype = {"dtype": _dtype_on(device, each.data)} if isinstance(each, PackedSequence) else {}
            return each.to(device, **dtype) if _moves_itself(each) else each

        batch = map_tensors(data, move, move_other, is_leaf)
        remember_texts(data, batch)
        return batch

    def before_other_code(self, sees_batches: bool) -> Callable[[Any], Any]:
        """Returns a function that moves batches before other code sees them; it does nothing if none does.

        The Trainer's own code moves a batch once it is checked and counted on the host, in `_prepare_input`.
        transformers' loaders move batches, so an override need not.
        """
        return self if sees_batches and self.device.type != "cpu" else _unmoved

    def _move(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Copies `tensors` to the device in one buffer and returns views of it."""
        tensors = [tensor.to(_dtype_on(self.device, tensor)) for tensor in tensors]
        places, size = [], 0
        for tensor in tensors:
            start = -(-size // _ALIGNED) * _ALIGNED
            size = start + tensor.nbytes
            places.append((start, size, tensor))
        host = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=self.device.type == "cuda")
        for start, end, tensor in places:
            host[start:end].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        buffer = host.to(self.device, non_blocking=self._non_blocking)
        # .data: autograd would take a change of one part in place for a change of all
        return [buffer[start:end].view(tensor.dtype).view(tensor.shape).data for start, end, tensor in places]


def _unmoved(data: Any) -> Any:
    return data


def _moves_itself(value: Any) -> bool:
    """Returns True for an object with a method `to`; not for transformers' batches, whose method moves each tensor."""
    return callable(getattr(value, "to", None)) and not isinstance(value, (BatchEncoding, BatchFeature))


def _packs(tensor: torch.Tensor) -> bool:
    """Returns True if a part of a buffer can replace `tensor`."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not tensor.is_nested
        and tensor.is_contiguous()
        and not tensor.is_quantized
        and not tensor.requires_grad
        and not tensor.is_complex()
    )


def _dtype_on(device: torch.device, tensor: torch.Tensor) -> torch.dtype:
    return REFUSED_ON_MPS.get(tensor.dtype, tensor.dtype) if device.type == "mps" else tensor.dtype
