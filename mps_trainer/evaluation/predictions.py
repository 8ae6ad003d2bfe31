"""Keeps the outputs of an evaluation until its metrics are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby, zip_longest
from typing import Any

import numpy as np
import torch
from transformers.trainer_pt_utils import nested_numpify

from ..data.padding import IGNORED_LABEL
from ..distributed import Processes
from ..training_args import TrainingArguments

_NOTHING = object()
_KEPT = ("losses", "predictions", "labels", "inputs")


class Predictions:
    """Losses, predictions, labels and inputs of all batches, padded to one length where batches are joined.

    They stay on the device until `eval_accumulation_steps` batches are done, or all are.

    Args:
        apart: keep the batches apart until they are asked for, because those of other processes come between them.
    """

    def __init__(self, args: TrainingArguments, keep_outputs: bool, apart: bool = False) -> None:
        self.every = args.eval_accumulation_steps
        self.keep_outputs = keep_outputs
        self.batches = 0
        self.losses: Any
        self.predictions: Any
        self.labels: Any
        self.inputs: Any
        join = args.eval_do_concat_batches
        self.losses, self.predictions, self.labels, self.inputs = (Batches(join, join and not apart) for _ in _KEPT)

    def add(self, loss: torch.Tensor | None, size: int, predictions: Any, labels: Any, inputs: Any) -> None:
        """Adds a batch of `size` examples, whose mean loss counts once for each of them."""
        self.batches += 1
        if loss is not None:
            self.losses.add(loss.repeat(size))
        if self.keep_outputs:
            for batches, value in ((self.predictions, predictions), (self.labels, labels), (self.inputs, inputs)):
                if value is not None:
                    batches.add(_map(_by_itself, [value]))
        if self.every and self.batches % self.every == 0:
            for name in _KEPT:
                getattr(self, name).to_host()

    def gather(self, processes: Processes) -> None:
        """Takes in the batches of all processes, in the order of a single process."""
        for name in _KEPT:
            getattr(self, name).gather(processes)

    def by_batch(self) -> Iterator[tuple[Any, ...]]:
        """Yields the four of each batch, after `gather`; None for a kind without any."""
        return zip_longest(*(getattr(self, name).on_host for name in _KEPT))

    def to_numpy(self) -> None:
        """Makes the four arrays, or lists of one for each batch; None where there was nothing."""
        for name in _KEPT:
            setattr(self, name, getattr(self, name).arrays())

    def put_back(self, order: np.ndarray) -> None:
        """Puts the rows of the four, which are arrays, into the dataset's order.

        Args:
            order: the index in the dataset of each row.
        """
        positions = np.argsort(order)

        def sort(array: np.ndarray) -> np.ndarray:
            return array[positions] if array.shape[:1] == positions.shape else array  # not one row for each example

        for name in _KEPT:
            if getattr(self, name) is not None:
                setattr(self, name, _map(sort, [getattr(self, name)]))

    def mean_loss(self, finite_only: bool) -> float | None:
        """Returns the mean over the examples; with `finite_only`, over those with a finite loss if there are any."""
        losses = np.concatenate(self.losses) if isinstance(self.losses, list) and self.losses else self.losses
        if not isinstance(losses, np.ndarray):
            return None
        finite = np.isfinite(losses)
        return (losses[finite] if finite_only and finite.any() else losses).mean().item()


class Batches:
    """Tensors, or lists, tuples and dictionaries of them, batch by batch; joined once, and copied to the host once.

    A copy for each batch would make the host wait for the device each time; a join for each would copy all again.

    Args:
        join: whether `arrays` gives them as one.
        join_early: whether they may be one before that. Default: if they are joined at all.
    """

    def __init__(self, join: bool, join_early: bool | None = None) -> None:
        self._join, self._join_early = join, join if join_early is None else join_early
        self._on_device: list[Any] = []
        self.on_host: list[Any] = []

    def add(self, batch: Any) -> None:
        self._on_device.append(batch)

    def to_host(self) -> None:
        """Moves the batches added since the last call from the device to host memory."""
        if self._on_device and self._join_early:
            self._on_device = [joined(self._on_device)]
        self.on_host += (_map(torch.Tensor.cpu, [batch]) for batch in self._on_device)
        self._on_device = []

    def gather(self, processes: Processes) -> None:
        """Takes in those of all processes: the first of each, then the second of each."""
        self.to_host()
        in_turn = zip_longest(*processes.gather(self.on_host), fillvalue=_NOTHING)
        self.on_host = [batch for batches in in_turn for batch in batches if batch is not _NOTHING]

    def arrays(self) -> Any:
        """Returns all batches as one, or a list of them, in NumPy's arrays; None if there are none."""
        self.to_host()
        if not self.on_host:
            return None
        return nested_numpify(joined(self.on_host) if self._join else self.on_host)


def _by_itself(tensor: torch.Tensor) -> torch.Tensor:
    """Copies a tensor that is a view, so that the whole batch does not stay in memory."""
    shares = tensor.device.type != "cpu" and tensor.untyped_storage().nbytes() > tensor.nbytes
    return tensor.clone() if shares else tensor


def joined(batches: list[Any]) -> Any:
    """Concatenates all batches, as transformers' nested_concat does for two.

    If they differ in the second dimension, it is padded at the end with the ignored label.
    """
    if len(batches) == 1:
        return batches[0]
    return _map(lambda *tensors: _concatenated([torch.atleast_1d(tensor) for tensor in tensors]), batches)


def _concatenated(tensors: list[torch.Tensor]) -> torch.Tensor:
    if tensors[0].ndim == 1 or len({tensor.shape[1] for tensor in tensors}) == 1:
        return torch.cat(tensors)
    parts = [torch.cat(list(alike)) for _, alike in groupby(tensors, key=lambda tensor: tensor.shape[1])]
    rows, width = sum(len(part) for part in parts), max(part.shape[1] for part in parts)
    whole = parts[0].new_full((rows, width, *parts[0].shape[2:]), IGNORED_LABEL)
    start = 0
    for part in parts:
        whole[start : start + len(part), : part.shape[1]] = part
        start += len(part)
    return whole


def _map(function: Callable[..., Any], values: list[Any]) -> Any:
    """Returns `function` of the tensors, or arrays, that have the same place in each of `values`.

    Raises:
        TypeError: for what is neither a tensor nor made of tensors.
    """
    first = values[0]
    if isinstance(first, (list, tuple)):
        return type(first)(_map(function, list(parts)) for parts in zip(*values, strict=False))
    if isinstance(first, Mapping):
        return type(first)({key: _map(function, [value[key] for value in values]) for key in first})  # type: ignore[call-arg]
    if not isinstance(first, (torch.Tensor, np.ndarray)):
        raise TypeError(
            f"Outputs of batches cannot be concatenated: there is a {type(first).__name__} among them, and only "
            "tensors, or lists, tuples and dictionaries of tensors are supported. Leave it out with ignore_keys, or "
            "in preprocess_logits_for_metrics."
        )
    return function(*values)
