"""The loop that one writes by hand with PyTorch alone."""

from __future__ import annotations

import torch
from torch.optim.lr_scheduler import LambdaLR

from .task import Task


def train(model: torch.nn.Module, task: Task, fused: bool | None = None) -> None:
    """`fused` is AdamW's; None is its default, which on the CPU is a loop over the parameters."""
    model.to(task.device).train()
    loader = task.loader()
    optimizer = torch.optim.AdamW(
        model.parameters(), task.learning_rate, task.betas, task.epsilon, weight_decay=0.0, fused=fused
    )
    schedule = LambdaLR(optimizer, task.rate)
    for step, batch in enumerate(loader, start=1):
        batch = {name: values.to(task.device) for name, values in batch.items()}
        loss = model(**batch)["loss"]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), task.clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % task.log_every == 0:
            print(f"step {step}: loss {loss.item():.4f}")
