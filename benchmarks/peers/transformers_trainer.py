"""transformers' Trainer, with its defaults."""

from __future__ import annotations

import torch
from transformers import Trainer, TrainingArguments

from .task import Task


def train(model: torch.nn.Module, task: Task) -> None:
    arguments = TrainingArguments(**task.arguments())
    Trainer(model, arguments, train_dataset=task.examples, data_collator=task.collate).train()
