"""Weights the losses of the batches of an update, so that they add up to the mean over all their items.

A model's loss is the mean over the items of one batch. The loss of a batch with half of the update's items is
therefore divided by two, however many batches the update has, and whatever processes they are in. `loop/items.py` says
what an item is. `loss_normalisation.py` finds losses that are divided by the items of the update already.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, SupportsFloat

import torch

from ..distributed import Processes
from .items import ItemCounter


class BatchWeight(NamedTuple):
    """The weight of a batch's loss in the loss of its update.

    Args:
        divisor: the divisor for the mean over the items of the batch. `float()` of it may wait for other processes.
        accumulated: the batches of the update, as the arguments say.
        is_split: True if some of these are split into several.
    """

    divisor: SupportsFloat = 1.0
    accumulated: int = 1
    is_split: bool = False

    def of_mean(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the part of a batch's mean in the mean over all items of the update."""
        divisor = float(self.divisor)
        return loss if divisor == 1 else loss / divisor

    def of_added_mean(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the part of a batch's mean where the means of all batches are added, as transformers does."""
        if self.accumulated > 1 and not self.is_split:
            return loss
        factor = self.accumulated / float(self.divisor)
        return loss if factor == 1 else loss * factor


class UpdateLoss:
    """Counts the items of the updates of a run, over all processes, and weights the losses of their batches.

    It knows where the update under way begins, because some of its batches may be fillers, which repeat an example of
    another process: that one counts it and has its loss.

    Args:
        counter: counts the items of a batch.
        averages: True for the mean over the items of all processes, False for the items of this process alone.
        distributed_sampler: the distributed sampler, whose `filler_batches` are the numbers of repeated batches; None
            with one process.

    Attributes:
        is_loading: True while the batches of an update are loaded, the same number in all processes. In an evaluation
            another process may have fewer.
    """

    def __init__(
        self,
        counter: ItemCounter = ItemCounter(),  # noqa: B008 - it never changes
        processes: Processes = Processes(),  # noqa: B008 - one that is alone has nothing that changes
        averages: bool = True,
        distributed_sampler: Any = None,
    ) -> None:
        self.counter, self.processes, self.averages = counter, processes, averages
        self.is_loading = False
        self._distributed_sampler, self._start = distributed_sampler, 0
        self._all_ignore_items = False

    @contextlib.contextmanager
    def loading_update(self, start: int) -> Iterator[None]:
        """Begins the update after the first `start` batches of the epoch, which are loaded and counted inside."""
        self._start, self.is_loading = start, True
        try:
            yield
        finally:
            self.is_loading = False

    def filler_positions(self, count: int) -> set[int]:
        """Returns the positions of fillers, which have no loss here, among the first `count` batches of the update."""
        numbers = () if self._distributed_sampler is None else self._distributed_sampler.filler_batches
        return {number - self._start for number in numbers if self._start <= number < self._start + count}

    def own_batches(self, batches: list[Any]) -> list[Any]:
        """Returns the `batches` that are no fillers."""
        fillers = self.filler_positions(len(batches))
        return [batch for number, batch in enumerate(batches) if number not in fillers]

    def items_of_all(
        self, items: torch.Tensor | None, may_be_used: bool, may_be_ignored: bool = False
    ) -> torch.Tensor | None:
        """Returns the number of items of the update in all processes; None if a process does not know its own.

        Args:
            items: the number of items in this process.
            may_be_used: True if a loss of this process may use the number.
            may_be_ignored: True if the model computes the loss. Processes may find out at different times whether it
                uses the number, so all exchange it until none does.
        """
        is_ignored = may_be_ignored and self._all_ignore_items
        if is_ignored or not self.processes.is_distributed or not self.averages:
            return items
        total, unknown, used = self.processes.sum([0.0 if items is None else float(items), items is None, may_be_used])
        self._all_ignore_items = not used
        return None if unknown else torch.tensor(int(total))

    def divisors(self, batches: list[Any]) -> Sequence[SupportsFloat | None]:
        """Returns the divisor for the loss of each batch of an update; None for one without items and loss.

        The gradients of several processes are averaged. With these divisors the average is the gradient of the mean
        over the items of all processes, or of this one without `averages`.
        """
        processes = self.processes
        if not processes.is_distributed:
            return divisors_of(self.counter.each(batches)) if len(batches) > 1 else [1.0]
        fillers = self.filler_positions(len(batches))
        counts = [0 if i in fillers else count for i, count in enumerate(self.counter.each(batches))]
        if not self.averages:
            return divisors_of(counts)
        items, with_loss = sum(count or 0 for count in counts), len(counts) - len(fillers)
        totals = processes.sum_later([counts.count(None), items, with_loss])
        # each own batch has a loss, whatever the other processes say
        if all(count for i, count in enumerate(counts) if i not in fillers):
            return [SharedDivisor(count, totals, processes.size) if count else None for count in counts]
        unknown, total, number = totals()
        if unknown or not total:
            counts, total = [0 if i in fillers else 1 for i in range(len(counts))], number
        return [total / (count * processes.size) if count else None for count in counts]


@dataclass(frozen=True)
class SharedDivisor:
    """The divisor for the loss of a batch with `items`; `float()` waits for the other processes.

    The answer arrives during the forward pass. Waiting for it before that took a tenth of the step of a small model
    in two processes on one machine.

    Args:
        totals: returns the sums over all processes: batches whose items are unknown, items, and batches with a loss.
        processes: the number of processes.
    """

    items: int
    totals: Callable[[], Sequence[float]]
    processes: int

    def __float__(self) -> float:
        unknown, items, batches = self.totals()
        return (batches if unknown else items / self.items) / self.processes


def divisors_of(items: list[int | None]) -> list[float | None]:
    """Returns the divisor for the loss of each batch of an update; their sum is then the mean over all their items.

    A model's loss is the mean over the items of one batch, so a batch with half of all items counts half, whatever
    the sizes of the others. A batch without items has no loss, and gets None if others have items. If items cannot be
    counted, all batches count the same.
    """
    if any(count is None for count in items) or not (total := sum(count or 0 for count in items)):
        return [float(len(items))] * len(items)
    return [total / count if count else None for count in items]


def loss_in_outputs(outputs: Any, inputs: Mapping[str, Any]) -> torch.Tensor:
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
