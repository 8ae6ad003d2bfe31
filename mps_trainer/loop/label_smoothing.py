"""Chooses the label smoother of a model."""

from __future__ import annotations

import warnings

from torch import nn
from transformers.trainer_pt_utils import LabelSmoother


def make_label_smoother(factor: float, model: nn.Module) -> LabelSmoother | None:
    """Returns a label smoother; None if `factor` is 0 or the model's labels do not support smoothing."""
    if not factor:
        return None
    if getattr(getattr(model, "config", None), "problem_type", None) == "multi_label_classification":
        warnings.warn(
            "Label smoothing is not compatible with multi-label classification, which the model's config asks: "
            "it spreads the probability of the one right label. label_smoothing_factor is left out.",
            UserWarning,
            stacklevel=3,
        )
        return None
    return LabelSmoother(factor)
