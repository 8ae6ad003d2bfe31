"""Trains a tiny BERT on the same random rows for every check."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.trainer_callback import PrinterCallback, TrainerCallback

from ...devices import Decision, MachineFacts
from ...trainer import Trainer
from ...training_args import TrainingArguments

if TYPE_CHECKING:
    from ..simulator import SimulatedMPS

STEPS = 20
WORDS, LENGTH, ROWS = 64, 16, 64


@dataclass(frozen=True)
class Lab:
    """The machine that is checked, and a folder for what the checks write.

    Args:
        simulated: the simulated mps device, if it is switched on.
    """

    decision: Decision
    facts: MachineFacts
    folder: Path
    simulated: SimulatedMPS | None = None

    @property
    def device(self) -> torch.device:
        return self.decision.device

    @property
    def fallback(self) -> bool:
        """True if operators without an MPS kernel run on the CPU in this process."""
        return self.simulated.fallback if self.simulated else bool(self.facts.fallback_when_torch_loaded)

    @functools.cached_property
    def cpu_losses(self) -> list[float]:
        return losses(self.train("cpu"))

    def train(
        self,
        device: str,
        model: nn.Module | None = None,
        resume: str | None = None,
        callbacks: list[TrainerCallback] | None = None,
        **settings: Any,
    ) -> Trainer:
        """Trains `model` (by default the tiny BERT without dropout) on a kind of device and returns the Trainer.

        The rate is constant and high, so that within 20 steps every parameter matters for the loss.
        """
        given: dict[str, Any] = {
            "output_dir": str(self.folder / "run"),
            "accelerator": device,
            "max_steps": STEPS,
            "logging_steps": 1,
            "logging_nan_inf_filter": False,
            "learning_rate": 1e-3,
            "lr_scheduler_type": "constant",
            "save_strategy": "no",
            "save_on_signal": False,
            "disable_tqdm": True,
            "report_to": [],
            "report": False,
        }
        trainer = Trainer(
            model if model is not None else tiny_bert(),
            TrainingArguments(**{**given, **settings}),
            train_dataset=random_rows(),
            callbacks=callbacks,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train(resume_from_checkpoint=resume)
        return trainer


def tiny_bert(dropout: float = 0.0) -> nn.Module:
    """Returns a BERT of two layers and a width of 32, with the same weights each time.

    They are drawn fifteen times as wide as BERT's own (0.02), which makes every part of the model show in the loss: at
    0.02 a gelu of another formula changes it by 1e-7, which is what rounding does.
    """
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        initializer_range=0.3,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return BertForSequenceClassification(config)


def random_rows() -> list[dict[str, Any]]:
    """Returns padded sequences of 8 to 16 words. The label is the half of the vocabulary of the first word."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for _ in range(ROWS):
        length = int(torch.randint(LENGTH // 2, LENGTH + 1, (1,), generator=generator))
        words = torch.randint(1, WORDS, (length,), generator=generator)
        row = {"input_ids": words, "attention_mask": torch.ones(length, dtype=torch.long)}
        padded = {name: nn.functional.pad(value, (0, LENGTH - length)) for name, value in row.items()}
        rows.append({**padded, "labels": int(words[0] >= WORDS // 2)})
    return rows


def losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
