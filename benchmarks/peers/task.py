"""Defines the task and the settings that every peer trains with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler


@dataclass(frozen=True)
class Task:
    """One pass over `examples`, a list of dicts, in an order that the seed decides.

    AdamW with `learning_rate` and `betas`, `epsilon` and no weight decay, as transformers' defaults are; a linear
    schedule to zero; gradients clipped to a norm of 1. The loss is looked at every `log_every` steps. `collate` makes
    a batch from examples; None for the library's default. `device` is "cpu", or "mps" for what the library finds.
    """

    examples: list[dict[str, Any]]
    folder: str  # for what a library insists on writing
    device: str = "cpu"
    batch_size: int = 8
    seed: int = 0
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    clip: float = 1.0
    log_every: int = 50
    rank: int = 0  # of this process, where `processes` train together with batches of `batch_size` each
    processes: int = 1
    collate: Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]] | None = None

    @property
    def steps(self) -> int:
        return len(self.examples) // (self.batch_size * self.processes)

    def loader(self) -> DataLoader[dict[str, torch.Tensor]]:
        """For loops by hand, in the order in which transformers' Trainer visits the examples in its first epoch."""
        examples = cast("Dataset[Any]", self.examples)
        order = RandomSampler(self.examples, generator=torch.Generator().manual_seed(self.seed))
        if self.processes == 1:
            return DataLoader(examples, self.batch_size, sampler=order, collate_fn=self.collate)
        batches = list(BatchSampler(order, self.batch_size, drop_last=False))[self.rank :: self.processes]
        return DataLoader(examples, batch_sampler=batches, collate_fn=self.collate)

    def rate(self, step: int) -> float:
        """The linear schedule, for LambdaLR."""
        return (self.steps - step) / self.steps

    def arguments(self) -> dict[str, Any]:
        """The settings under the names of `TrainingArguments`, of either library."""
        return {
            **{"output_dir": self.folder, "use_cpu": self.device == "cpu", "num_train_epochs": 1, "seed": self.seed},
            **{"per_device_train_batch_size": self.batch_size, "learning_rate": self.learning_rate},
            **{"adam_beta1": self.betas[0], "adam_beta2": self.betas[1], "adam_epsilon": self.epsilon},
            **{"max_grad_norm": self.clip, "logging_steps": self.log_every, "save_strategy": "no"},
            # as DistributedDataParallel has it; the Trainers look for unused parameters otherwise, at a cost
            **({"ddp_find_unused_parameters": False} if self.processes > 1 else {}),
        }
