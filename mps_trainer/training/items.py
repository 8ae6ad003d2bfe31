"""The items of an update: how many there are, and whether a model's own loss is divided by them.

transformers hands `num_items_in_batch` to each model whose forward() takes further arguments. Some divide their loss
by it, others (BERT's heads for one) take it and do nothing with it, and their loss stays the mean of one batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..data.padding import IGNORED_LABEL
from ..distributed.sharded import is_sharded
from .introspection import base_model


def items_of(batches: list[Any], shifted: bool) -> torch.Tensor | None:
    """Labels of all batches that count, on their own device; None if a batch has none under "labels".

    Args:
        shifted: whether the first label of each row is no target. Labels that are shifted already go first.
    """
    total: torch.Tensor | None = None
    for batch in batches:
        labels = _labels(batch, shifted)
        if labels is None:
            return None
        count = labels.ne(IGNORED_LABEL).sum()
        total = count if total is None else total + count
    return total


def _labels(batch: Any, shifted: bool) -> torch.Tensor | None:
    if not isinstance(batch, Mapping):
        return None
    if isinstance(batch.get("shift_labels"), torch.Tensor):
        return batch["shift_labels"]
    labels = batch.get("labels")
    if not isinstance(labels, torch.Tensor):
        return None
    return labels[..., 1:] if shifted and labels.dim() > 1 else labels


class NumItemsProbe:
    """Whether a model uses the number of items that it is given: learnt from the first batch it is given it with.

    Args:
        model: one that accepts arguments of the loss.
    """

    def __init__(self, model: nn.Module) -> None:
        self.is_used: bool | None = None
        # the losses of transformers take a plain number as well, which need not travel to the device
        self._takes_number = type(base_model(model)).__module__.startswith("transformers.")

    def forward(self, model: nn.Module, inputs: Mapping[str, Any], items: torch.Tensor | int) -> Any:
        """Outputs of `model` for `inputs` and `items`."""
        if self.is_used is False:
            return model(**inputs)
        if self.is_used:
            given = int(items) if self._takes_number and _in_host_memory(items) else items
            return model(**inputs, num_items_in_batch=given)
        items = torch.as_tensor(items)
        if is_sharded(model):  # which would move it to the device of the others, and so use it
            items = items.to(next((each.device for each in inputs.values() if torch.is_tensor(each)), items.device))
        # a copy: `mps-trainer check` takes what a model is given for something on the device
        watched = items.clone().as_subclass(_Watched)
        # compiled code is traced once and would not tell
        outputs = getattr(model, "_orig_mod", model)(**inputs, num_items_in_batch=watched)
        self.is_used = watched.was_used
        return outputs


def _in_host_memory(items: torch.Tensor | int) -> bool:
    return not isinstance(items, torch.Tensor) or items.device.type == "cpu"


class _Watched(torch.Tensor):
    """A number that notes whether anything was computed with it."""

    was_used = False

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") not in ("__get__", "is_floating_point"):  # asking what it is is no use of it
            for value in [*args, *(kwargs or {}).values()]:
                if isinstance(value, _Watched):
                    value.was_used = True
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return result
