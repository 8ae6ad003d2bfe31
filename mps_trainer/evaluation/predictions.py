"""Reads the loss, labels and logits of each batch, and keeps them until metrics are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from transformers.trainer_pt_utils import nested_detach, nested_numpify

from ..data.padding import IGNORED_LABEL
from ..distributed import Processes
from ..training_args import TrainingArguments
from ..utils.caches import CACHES

# One batch


def has_loss(inputs: Mapping[str, Any], label_names: list[str], can_return_loss: bool) -> bool:
    """Returns True if the batch has all labels, or if the model gives a loss without any."""
    if label_names:
        return all(inputs.get(name) is not None for name in label_names)
    return_loss = inputs.get("return_loss")
    return bool(can_return_loss if return_loss is None else return_loss)


def labels_of(inputs: Mapping[str, Any], label_names: list[str]) -> Any:
    """Returns the labels of a batch, detached; a tuple unless there is one name."""
    labels = nested_detach(tuple(inputs.get(name) for name in label_names))
    return labels[0] if len(labels) == 1 else labels


def logits_of(outputs: Any, with_loss: bool, ignore_keys: list[str] | None, model: Any) -> Any:
    """Returns a model's outputs without the loss, detached: a single output, or a tuple of several.

    The tuple is empty if the model returns only its loss, as in transformers. None if all other outputs are None.

    Args:
        ignore_keys: the keys of outputs to leave out; None for those that the model's configuration names.
    """
    if isinstance(outputs, dict):
        if ignore_keys is None:
            config = getattr(model, "config", None)
            ignore_keys = getattr(config, "keys_to_ignore_at_inference", [*CACHES]) if config else []
        left_out = [*ignore_keys, "loss"] if with_loss else ignore_keys
        others = tuple(value for key, value in outputs.items() if key not in left_out)
        logits = tuple(value for value in others if value is not None)
        if others and not logits:
            return None
    elif isinstance(outputs, torch.Tensor):
        logits = () if with_loss else (outputs,)
    else:
        logits = outputs[1:] if with_loss else outputs
    return nested_detach(logits[0] if len(logits) == 1 else logits)


# All batches


class Predictions:
    """Collects losses, predictions, labels and inputs, and joins their batches, padded to one length.

    They stay on the device until `eval_accumulation_steps` batches are done, or all are, and are joined and copied to
    the host at once: a copy for each batch would wait for the device, and a join for each would copy all again.

    Args:
        apart: do not join batches before `gather`, because batches of other processes come between them.
    """

    def __init__(self, args: TrainingArguments, keep_outputs: bool = True, apart: bool = False) -> None:
        self._joins, self._joins_early = args.eval_do_concat_batches, args.eval_do_concat_batches and not apart
        self._every, self._keeps_outputs, self._count = args.eval_accumulation_steps, keep_outputs, 0
        self._first_kind: str | None = None
        self._on_device: list[list[Any]] = [[], [], [], []]
        self._on_host: list[list[Any]] = [[], [], [], []]

    def add(self, loss: torch.Tensor | None, size: int, predictions: Any, labels: Any, inputs: Any) -> None:
        """Adds a batch of `size` examples, whose mean loss counts once for each of them."""
        losses = None if loss is None else loss.repeat(size)
        values = (losses, predictions, labels, inputs) if self._keeps_outputs else (losses,)
        if self._keeps_outputs and self._joins and predictions is not None:
            self._check_alike(predictions)
        for batches, value in zip(self._on_device, values, strict=False):
            if value is not None:
                batches.append(_map(_without_shared_memory, [value]))
        self._count += 1
        if self._every and self._count % self._every == 0:
            self._to_host()

    def _check_alike(self, predictions: Any) -> None:
        """Raises TypeError if the batch's predictions differ in kind from the first batch's."""
        kind = _kind(predictions)
        self._first_kind = kind if self._first_kind is None else self._first_kind
        if kind != self._first_kind:
            raise TypeError(
                f"The model's outputs are {self._first_kind} in the first batch, and {kind} in batch {self._count}, "
                "counted from 0. Most likely one of them is missing or None in some batches. Return it for each, or "
                "leave it out with ignore_keys."
            )

    def _to_host(self) -> None:
        for on_device, on_host in zip(self._on_device, self._on_host, strict=True):
            batches = [_joined(on_device)] if on_device and self._joins_early else on_device
            on_host += (_map(torch.Tensor.cpu, [batch]) for batch in batches)
            on_device.clear()

    def gather(self, processes: Processes) -> None:
        """Adds the batches of all processes in the order of a single process: the first of each, then the second."""
        self._to_host()
        for i, own in enumerate(self._on_host):
            in_turn = zip_longest(*processes.gather(own))
            self._on_host[i] = [batch for batches in in_turn for batch in batches if batch is not None]

    def by_batch(self) -> Iterator[tuple[Any, ...]]:
        """Yields losses, predictions, labels and inputs of each batch, after `gather`; None where there are none.

        The inputs are not kept for `arrays`.
        """
        *others, inputs = self._on_host
        self._on_host[3] = []
        return zip_longest(*others, inputs)

    def arrays(self, order: np.ndarray | None = None) -> list[Any]:
        """Returns losses, predictions, labels and inputs as NumPy arrays, or lists of one for each batch, or None.

        Args:
            order: the index in the dataset of each row; the arrays are sorted by it.
        """
        self._to_host()
        made = [nested_numpify(_joined(each) if self._joins else each) if each else None for each in self._on_host]
        if order is None:
            return made
        positions = np.argsort(order)

        def sort(array: np.ndarray) -> np.ndarray:
            # an array that does not have one row for each example stays as it is
            return array[positions] if array.shape[:1] == positions.shape else array

        return [None if each is None else _map(sort, [each]) for each in made]


def mean_loss(losses: Any, finite_only: bool) -> float | None:
    """Returns the mean over the examples; with `finite_only`, over those with a finite loss if there are any."""
    if losses is None:
        return None
    losses = np.concatenate(losses) if isinstance(losses, list) else losses
    finite = np.isfinite(losses)
    return (losses[finite] if finite_only and finite.any() else losses).mean().item()


def _kind(value: Any) -> str:
    """Returns in words how tensors are nested in `value`."""
    if isinstance(value, Mapping):
        entries = [f"{key} ({_kind(each)})" if _is_nested(each) else str(key) for key, each in value.items()]
        return f"a {type(value).__name__} with {', '.join(entries)}"
    if isinstance(value, (list, tuple)):
        nested = [_kind(each) for each in value if _is_nested(each)]
        return f"a {type(value).__name__} of {len(value)}{' with ' * bool(nested)}{' and '.join(nested)}"
    return "a tensor"


def _is_nested(value: Any) -> bool:
    return isinstance(value, (Mapping, list, tuple))


def _without_shared_memory(tensor: torch.Tensor | np.ndarray) -> torch.Tensor:
    """Copies a view, which keeps the whole batch in memory, and a worker's tensor, which keeps a file open.

    An array, as preprocess_logits_for_metrics may return, becomes a tensor.
    """
    tensor = torch.from_numpy(tensor) if isinstance(tensor, np.ndarray) else tensor
    is_view = tensor.untyped_storage().nbytes() > tensor.nbytes
    return tensor.clone() if is_view or (tensor.device.type == "cpu" and tensor.is_shared()) else tensor


def _joined(batches: list[Any]) -> Any:
    """Concatenates all batches, as transformers' nested_concat does for two.

    If they differ in the second dimension, it is padded at the end with the ignored label.
    """
    return batches[0] if len(batches) == 1 else _map(_concatenated, batches)


def _concatenated(*given: torch.Tensor) -> torch.Tensor:
    tensors = [torch.atleast_1d(tensor) for tensor in given]
    if tensors[0].ndim == 1 or len({tensor.shape[1] for tensor in tensors}) == 1:
        return torch.cat(tensors)
    sizes, width = [len(tensor) for tensor in tensors], max(tensor.shape[1] for tensor in tensors)
    whole = tensors[0].new_full((sum(sizes), width, *tensors[0].shape[2:]), IGNORED_LABEL)
    for rows, tensor in zip(whole.split(sizes), tensors, strict=True):
        rows[:, : tensor.shape[1]] = tensor
    return whole


def _map(function: Callable[..., Any], values: list[Any]) -> Any:
    """Returns `function` of the tensors, or arrays, that have the same place in each of `values`.

    Raises:
        TypeError: for what is neither a tensor nor made of tensors.
    """
    first = values[0]
    if isinstance(first, (list, tuple)):
        return type(first)(_map(function, list(each)) for each in zip(*values, strict=False))
    if isinstance(first, Mapping):
        return type(first)({key: _map(function, [value[key] for value in values]) for key in first})  # type: ignore[call-arg]
    if not isinstance(first, (torch.Tensor, np.ndarray)):
        raise TypeError(
            f"Outputs of batches cannot be concatenated: there is a {type(first).__name__} among them, and only "
            "tensors, or lists, tuples and dictionaries of tensors are supported. Leave it out with ignore_keys, or "
            "in preprocess_logits_for_metrics."
        )
    return function(*values)
