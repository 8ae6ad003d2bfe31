"""The hand-written loop with AdamW's fused kernels, for whoever knows to ask for them."""

from __future__ import annotations

import torch

from . import bare
from .task import Task


def train(model: torch.nn.Module, task: Task) -> None:
    bare.train(model, task, fused=True)
