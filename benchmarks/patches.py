"""Measures the gain of each patch of a model, with and without it in alternation.

    python -m benchmarks.patches

Waits and operators are counted on the simulated mps device, for a step of a BERT of two layers. Time is processor
time on one thread of the CPU, for a step of a MiniLM with random weights; the ratio is the median over the rounds.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from mps_trainer.simulator import simulated_mps  # before torch, for its build for CUDA

# isort: split
import torch
from torch import nn

ROUNDS, STEPS = 7, 8


@contextlib.contextmanager
def without_masks() -> Iterator[None]:
    from mps_trainer import trainer
    from mps_trainer.model.patches import masks

    def made(device: torch.device) -> masks.AttentionMasks:
        unused = masks.AttentionMasks(device)
        unused.applies = False
        return unused

    with mock.patch.object(trainer, "AttentionMasks", made):
        yield


def without(name: str) -> Callable[[], Any]:
    """Returns a context in which the preparation of a model leaves out one of its patches."""

    def context() -> Any:
        from mps_trainer.model import preparation

        return mock.patch.object(preparation, name, return_value=contextlib.nullcontext())

    return context


@contextlib.contextmanager
def without_adamw() -> Iterator[None]:
    from mps_trainer.optim import factory

    with mock.patch.object(factory, "AdamW", torch.optim.AdamW):
        yield


# Patches of language models, which are counted for a Llama of two layers.
OF_LLAMA = {
    name: without(name) for name in ("norms_in_few_kernels", "rotations_in_few_kernels", "positions_made_once")
}

PATCHES: dict[str, tuple[str, Callable[[], Any]]] = {
    "adamw": ("mps", without_adamw),
    "masks": ("mps", without_masks),
    "unread_tokens": ("cpu", without("unread_tokens_skipped")),
}


def counts(device: Any) -> dict[str, float]:
    from .peers.mps_trainer import train
    from .simulated import _counted
    from .tasks import small_bert

    with tempfile.TemporaryDirectory() as folder:
        return _counted(device, train, *small_bert(STEPS, folder=folder, device="mps"))[1]


def counts_of_llama(device: Any, lora: bool) -> dict[str, float]:
    from .peers.mps_trainer import train
    from .simulated import _counted
    from .tasks import Task, small_llama

    with tempfile.TemporaryDirectory() as folder:
        model, rows = small_llama(STEPS, lora=lora)
        return _counted(device, train, model, Task(rows, batch_size=4, folder=folder, device="mps"))[1]


def processor_time() -> float:
    """Returns the processor time of a step of two batches of 16, in seconds."""
    from transformers import BertConfig, BertForSequenceClassification, TrainerCallback

    from mps_trainer import Trainer, TrainingArguments

    torch.manual_seed(0)
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    model: nn.Module = BertForSequenceClassification(BertConfig(**sizes))
    rows = [{"input_ids": torch.randint(0, 30_522, (48,)).tolist(), "labels": i % 2} for i in range(32 * STEPS)]
    begun: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            begun.append(time.process_time())

    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {
            "gradient_accumulation_steps": 2,
            "report_to": "none",
            "disable_tqdm": True,
            "save_strategy": "no",
            "logging_strategy": "no",
            "skip_unread_tokens": True,
        }
        args = TrainingArguments(
            folder, use_cpu=True, max_steps=STEPS, per_device_train_batch_size=16, log_level="error", **settings
        )
        Trainer(model, args, train_dataset=rows, callbacks=[Clock()]).train()
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(begun[2:]))


def main() -> None:
    for name, (where, switched_off) in PATCHES.items():
        if where == "mps":
            with simulated_mps() as device:
                on = counts(device)
                with switched_off():
                    off = counts(device)
            for figure in ("operators", "blocking_reads"):
                print(f"{name}: {on[figure]:g} {figure} a step, {off[figure]:g} without it", flush=True)
            continue
        torch.set_num_threads(1)
        ratios = []
        for _ in range(ROUNDS):
            on_time = processor_time()
            with switched_off():
                ratios.append(on_time / processor_time())
        print(f"{name}: {statistics.median(ratios):.3f} of the time of a step without it ({min(ratios):.3f} to "
              f"{max(ratios):.3f} in {ROUNDS} rounds)", flush=True)  # fmt: skip
    for lora in (False, True):
        with simulated_mps() as device:
            on = counts_of_llama(device, lora)
            for name, switched_off in OF_LLAMA.items():
                with switched_off():
                    off = counts_of_llama(device, lora)
                for figure in ("operators", "blocking_reads"):
                    print(f"{name}{', with LoRA' if lora else ''}: {on[figure]:g} {figure} a step, "
                          f"{off[figure]:g} without it", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
