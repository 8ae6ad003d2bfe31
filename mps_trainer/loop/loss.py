"""Computes the loss of a batch, its divisor, and the number of items in an update.

transformers hands `num_items_in_batch` to each model whose forward() takes further arguments. Some divide their loss
by it, others (BERT's heads for one) take it and do nothing with it, and their loss stays the mean of one batch.
"""

from __future__ import annotations

import dis
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat

import torch
from torch import nn
from transformers.trainer_pt_utils import LabelSmoother, find_batch_size

from ..data.padding import IGNORED_LABEL
from ..distributed import Processes
from ..distributed.sharded import class_of, is_sharded
from ..model.introspection import base_model

# not in the first releases of transformers 5
_SMOOTHER_NORMALISES = "num_items_in_batch" in inspect.signature(LabelSmoother.__call__).parameters


def loss_of(outputs: Any, inputs: Mapping[str, Any]) -> torch.Tensor:
    """Returns the loss in the outputs of a model: under "loss", first in a tuple, or the output itself.

    Raises:
        ValueError: if there is none.
    """
    if isinstance(outputs, Mapping):
        if outputs.get("loss") is not None:
            return outputs["loss"]
        others = ", ".join(name for name in outputs if name != "loss")
        raise ValueError(
            f"The model returned {others + ' but ' if others else ''}no loss. Its inputs were: {', '.join(inputs)}. "
            "Check that they include the labels under the name that forward() takes, or override compute_loss."
        )
    loss = outputs if isinstance(outputs, torch.Tensor) else outputs[0]
    if not isinstance(loss, torch.Tensor) or loss.dim() > 0:
        raise ValueError(
            "The model's first output is not a loss, which is a tensor with one value. Return the loss first or under "
            f"'loss' when labels are given (it was given {', '.join(inputs)}), or override compute_loss."
        )
    return loss


def shifts_labels(model: nn.Module) -> bool:
    """Returns True if the model's loss predicts the next token, so the first label of each row is not a target."""
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    loss_type = getattr(model, "loss_type", None)
    if loss_type is None:
        return False
    from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss

    return LOSS_MAPPING.get(loss_type) is ForCausalLMLoss


def predicts_next_token(model: nn.Module) -> bool:
    """Returns True for a causal language model, where the logits at a position predict the next label."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    inner = base_model(getattr(model, "_orig_mod", model))
    return class_of(inner).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()


def count_items(batch: Any, label_names: list[str], shifted: bool) -> int | None:
    """Returns the labels in a batch that enter its loss; its examples if the labels are on a device."""
    if not isinstance(batch, Mapping):
        return None
    labels = next((batch[name] for name in ["labels", *label_names] if name in batch), None)
    if not isinstance(labels, torch.Tensor) or labels.device.type != "cpu":
        return find_batch_size(batch)
    if shifted and labels.dim() > 1:
        labels = labels[..., 1:]
    return labels.numel() if labels.is_floating_point() else int(labels.ne(IGNORED_LABEL).sum())


def smoothed_loss(
    smoother: LabelSmoother, model: nn.Module, outputs: Any, labels: Any, num_items: torch.Tensor | int | None
) -> tuple[torch.Tensor, bool]:
    """Returns the smoothed loss, and True if it is normalised over `num_items`, the items of the whole update."""
    is_normalised = num_items is not None and _SMOOTHER_NORMALISES
    kwargs = {"num_items_in_batch": num_items} if is_normalised else {}
    return smoother(outputs, labels, shift_labels=predicts_next_token(model), **kwargs), is_normalised


def reads_num_items(compute_loss: Callable) -> bool:
    """Returns True if the code of a `compute_loss` reads the number of items, by name or in `*args, **kwargs`."""
    code = getattr(inspect.unwrap(compute_loss), "__code__", None)
    if code is None:
        return False
    arguments = inspect.getargs(code)
    names = {"num_items_in_batch", arguments.varargs, arguments.varkw} - {None}
    return any(not names.isdisjoint(_variables(each)) for each in dis.get_instructions(code) if "LOAD" in each.opname)


def _variables(instruction: dis.Instruction) -> tuple[str, ...]:
    """Returns the names of the local variables that an instruction reads; Python 3.13 joins two in one."""
    if not any(kind in instruction.opname for kind in ("FAST", "DEREF", "CLOSURE")):
        return ()
    return instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)


def warn_of_assumption(trainer_name: str) -> None:
    """Warns that a subclass's loss is assumed to be normalised over the update, because the class does not say."""
    warnings.warn(
        f"{trainer_name}.compute_loss is assumed to divide by num_items_in_batch, as in transformers for a model "
        "that accepts that argument. If it returns the mean of its batch, accumulated losses are too large: set "
        "loss_is_scaled_for_ga = False in the class, or True to silence this warning.",
        UserWarning,
        stacklevel=3,
    )


def own_items(
    items: torch.Tensor | int | None, batches: list[Any], padding: set[int], count: Callable[[list[Any]], Any]
) -> Any:
    """Returns the items in `batches` without those of other processes.

    Args:
        items: in all of `batches`.
        padding: positions of the batches that are another process's, which counts them.
        count: `batches -> items`.
    """
    if not padding or items is None:
        return items
    own = [batch for number, batch in enumerate(batches) if number not in padding]
    return count(own) if own else torch.tensor(0)


def items_of_all(
    items: torch.Tensor | int | None, may_be_used: bool, processes: Processes
) -> tuple[torch.Tensor | None, bool]:
    """Returns the items of an update in all processes, and True if the loss of any of them may use the number.

    The items are None if one process does not know its number.
    """
    total, unknown, used = processes.sum([0.0 if items is None else float(items), items is None, may_be_used])
    return None if unknown else torch.tensor(int(total)), bool(used)


@dataclass(frozen=True)
class SharedDivisor:
    """The divisor for the loss of a batch with `items`; `float()` waits for the other processes.

    The answer arrives during the forward pass. To wait for it before that took a tenth of the step of a small model
    in two processes on one machine.

    Args:
        totals: returns the sums over all processes: batches whose items are unknown, items, and batches with a loss.
        processes: how many there are.
    """

    items: int
    totals: Callable[[], Sequence[float]]
    processes: int

    def __float__(self) -> float:
        unknown, items, batches = self.totals()
        return (batches if unknown else items / self.items) / self.processes


def divisors_of_all(
    counts: list[int | None], padding: set[int], processes: Processes, average_tokens: bool
) -> Sequence[SupportsFloat | None]:
    """Returns the divisor for the loss of each batch of an update, where several processes average their gradients.

    The average is then the mean over the items of all of them.

    Args:
        counts: the items in each batch; None where that cannot be told.
        padding: positions of the batches that are another process's, and have no loss here.
        average_tokens: each process has the mean over its own items instead, if this is False.
    """
    counts = [0 if i in padding else count for i, count in enumerate(counts)]
    if not average_tokens:
        return divisors(counts)
    totals = processes.sum_later([counts.count(None), sum(count or 0 for count in counts), len(counts) - len(padding)])
    if all(count for i, count in enumerate(counts) if i not in padding):  # they have a loss, whatever the others say
        return [SharedDivisor(count, totals, processes.size) if count else None for count in counts]
    unknown, total, number = totals()
    if unknown or not total:
        counts, total = [0 if i in padding else 1 for i in range(len(counts))], number
    return [total / (count * processes.size) if count else None for count in counts]


def divisors(items: list[int | None]) -> list[float | None]:
    """Returns the divisor for the loss of each batch of an update; their sum is then the mean over all their items.

    A model's loss is the mean over the items of one batch, so a batch with half of all items counts half, whatever
    the sizes of the others. None is for a batch that has no item and so no loss, where others have. Where items
    cannot be counted, all batches count the same.
    """
    if any(count is None for count in items) or not (total := sum(count or 0 for count in items)):
        return [float(len(items))] * len(items)
    return [total / count if count else None for count in items]


def items_of(batches: list[Any], shifted: bool) -> torch.Tensor | None:
    """Returns the labels of all batches that count, on their own device; None if a batch has no "labels".

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
    """Detects in the first batch if a model uses the number of items.

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
    """A number that records if anything was computed with it."""

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
