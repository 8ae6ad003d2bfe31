"""Lightning's Trainer, with its defaults: bar, model summary, CSV log; no checkpoints."""

from __future__ import annotations

import contextlib
from typing import Any
from unittest import mock

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from torch.optim.lr_scheduler import LambdaLR

from .task import Task


class Module(lightning.LightningModule):
    def __init__(self, model: torch.nn.Module, task: Task) -> None:
        super().__init__()
        self.model = model
        self.task = task

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        loss = self.model(**batch)["loss"]
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        task = self.task
        optimizer = torch.optim.AdamW(
            self.parameters(), task.learning_rate, task.betas, task.epsilon, weight_decay=0.0
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": LambdaLR(optimizer, task.rate), "interval": "step"},
        }


def train(model: torch.nn.Module, task: Task) -> None:
    loader = task.loader()
    # It looks at the processor before it believes in an mps device; a simulated one has another.
    arm = mock.patch("platform.processor", return_value="arm") if task.device == "mps" else contextlib.nullcontext()
    with arm:
        trainer = lightning.Trainer(
            accelerator=task.device,
            devices=1,
            max_epochs=1,
            gradient_clip_val=task.clip,
            log_every_n_steps=task.log_every,
            enable_checkpointing=False,
            logger=CSVLogger(task.folder),
            default_root_dir=task.folder,
        )
        trainer.fit(Module(model.train(), task), loader)
