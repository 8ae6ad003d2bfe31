"""A loop by hand around Accelerate, as its introduction writes it."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch.optim.lr_scheduler import LambdaLR

from .task import Task


def train(model: torch.nn.Module, task: Task) -> None:
    accelerator = Accelerator(cpu=task.device == "cpu")
    optimizer = torch.optim.AdamW(model.parameters(), task.learning_rate, task.betas, task.epsilon, weight_decay=0.0)
    loader = task.loader()
    schedule = LambdaLR(optimizer, task.rate)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    model.train()
    for step, batch in enumerate(loader, start=1):
        loss = model(**batch)["loss"]
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), task.clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % task.log_every == 0:
            accelerator.print(f"step {step}: loss {loss.item():.4f}")
