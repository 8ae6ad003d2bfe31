"""The outputs of an evaluation, kept until there are metrics of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from transformers.trainer_pt_utils import EvalLoopContainer

from ..training_args import TrainingArguments
from .accelerator import GradientState
from .loss import IGNORED_LABEL


class Predictions:
    """Losses, predictions, labels and inputs of all batches, padded to one length where batches are joined.

    They stay on the device until `eval_accumulation_steps` batches are done, or all are.
    """

    def __init__(self, args: TrainingArguments, keep_outputs: bool) -> None:
        self.every = args.eval_accumulation_steps
        self.keep_outputs = keep_outputs
        self.batches = 0
        self.losses, self.predictions, self.labels, self.inputs = (
            EvalLoopContainer(args.eval_do_concat_batches, padding_index=IGNORED_LABEL) for _ in range(4)
        )

    def add(self, loss: torch.Tensor | None, size: int, predictions: Any, labels: Any, inputs: Any) -> None:
        """Adds a batch of `size` examples, whose mean loss counts once for each of them."""
        self.batches += 1
        if loss is not None:
            self.losses.add(loss.repeat(size))
        if self.keep_outputs:
            for container, value in ((self.predictions, predictions), (self.labels, labels), (self.inputs, inputs)):
                if value is not None:
                    container.add(value)
        if self.every and self.batches % self.every == 0:
            for container in (self.losses, self.predictions, self.labels, self.inputs):
                container.to_cpu_and_numpy()

    def to_numpy(self) -> None:
        """Afterwards the four are arrays, or lists of one for each batch; None where there was nothing."""
        for name in ("losses", "predictions", "labels", "inputs"):
            setattr(self, name, getattr(self, name).get_arrays())

    def mean_loss(self, finite_only: bool) -> float | None:
        """Mean over the examples; over those with a finite loss, if there are any, with `finite_only`."""
        losses = np.concatenate(self.losses) if isinstance(self.losses, list) and self.losses else self.losses
        if not isinstance(losses, np.ndarray):
            return None
        finite = np.isfinite(losses)
        return (losses[finite] if finite_only and finite.any() else losses).mean().item()


def watching_for_last(batches: Iterable[Any], state: GradientState) -> Iterator[Any]:
    """`batches`; `state.end_of_dataloader` holds while the last of them is worked on."""
    state.end_of_dataloader = False
    iterator = iter(batches)
    nothing = object()
    batch = next(iterator, nothing)
    while batch is not nothing:
        following = next(iterator, nothing)
        state.end_of_dataloader = following is nothing
        yield batch
        batch = following
