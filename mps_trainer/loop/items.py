"""Counts the items of batches. An item is a label that enters the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..data.padding import IGNORED_LABEL
from ..distributed.sharded import class_of
from ..model.introspection import base_model, loss_is_of_next_token
from ..utils.nested import find_batch_size


class ItemCounter(NamedTuple):
    """Counts the items by which a model divides the loss of a batch.

    Args:
        label_names: names of labels, beside "labels".
        shifted: True if the loss predicts the next token, so that the first label of each row is not a target.
        counts_examples: True if the loss is the mean over examples.
    """

    label_names: Sequence[str] = ()
    shifted: bool = False
    counts_examples: bool = False

    @classmethod
    def of(cls, model: Any, label_names: Sequence[str]) -> ItemCounter:
        """Returns the counter for a model, which may have wrappers."""
        model = base_model(model)
        return cls(label_names, loss_is_of_next_token(model), class_of(model).__name__.endswith("ForCTC"))

    def each(self, batches: list[Any]) -> list[int | None]:
        """Returns the number of items in each of `batches`, None where it is unknown."""
        if self.counts_examples:
            return [find_batch_size(batch) for batch in batches]
        return [count_items(batch, self.label_names, self.shifted) for batch in batches]


def count_items(batch: Any, label_names: Sequence[str], shifted: bool) -> int | None:
    """Returns the labels in a batch that enter its loss; its examples if the labels are on a device."""
    labels = _labels_in_loss(batch, shifted, ["labels", *label_names])
    if labels is None or labels.device.type != "cpu":
        return find_batch_size(batch) if isinstance(batch, Mapping) else None
    return labels.numel() if labels.is_floating_point() else int(labels.ne(IGNORED_LABEL).sum())


def items_of(batches: list[Any], shifted: bool) -> torch.Tensor | None:
    """Returns the number of labels of all batches that count, on their own device; None if a batch has no "labels".

    Args:
        shifted: True if the loss predicts the next token, so that the first label of each row is not a target.
    """
    counts = []
    for batch in batches:
        if (labels := _labels_in_loss(batch, shifted)) is None:
            return None
        counts.append(labels.ne(IGNORED_LABEL).sum())
    return sum(counts[1:], counts[0]) if counts else None


def _labels_in_loss(batch: Any, shifted: bool, names: Sequence[str] = ("labels",)) -> torch.Tensor | None:
    """Returns the labels that enter the loss of a batch: those that are shifted already, if it has such labels."""
    if not isinstance(batch, Mapping):
        return None
    if isinstance(batch.get("shift_labels"), torch.Tensor):
        return batch["shift_labels"]
    labels = next((batch[name] for name in names if name in batch), None)
    if not isinstance(labels, torch.Tensor):
        return None
    if labels.is_nested:
        return None if shifted else labels.values()
    return labels[..., 1:] if shifted and labels.dim() > 1 else labels
