"""Floating-point operations of a run, estimated as 6 x parameters x tokens (Kaplan et al. 2020, section 2.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


class FlosCounter:
    """Counts operations from the shapes of the batches; a model that does not say what its main input is counts 0.

    Embeddings are left out of the parameters, as in the source: looking up a row is not an operation.
    """

    def __init__(self, model: nn.Module) -> None:
        self.main_input = getattr(model, "main_input_name", None)
        count = getattr(model, "num_parameters", None)
        self.per_token = 6 * count(exclude_embeddings=True) if count is not None and self.main_input else 0
        self.counted = 0.0

    def add(self, batch: Any) -> None:
        tensor = batch.get(self.main_input) if self.per_token and isinstance(batch, Mapping) else None
        if isinstance(tensor, torch.Tensor):
            self.counted += float(self.per_token * tensor.numel())

    def take(self) -> float:
        """What was counted since the last call."""
        counted, self.counted = self.counted, 0.0
        return counted
