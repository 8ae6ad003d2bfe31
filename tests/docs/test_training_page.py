"""The order of events and the files of a checkpoint, as the page on training lists them."""

from __future__ import annotations

import re

import pytest

from mps_trainer import Trainer, TrainingArguments

from .pages import ROOT, all_blocks

TRAINING = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")


@pytest.fixture
def run(bert, sentences, tmp_path):
    """One epoch of two steps of two batches each, with what else the settings ask for."""

    def train(callbacks=(), **settings):
        args = TrainingArguments(
            output_dir=str(tmp_path / "out"),
            use_cpu=True,
            num_train_epochs=1,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            save_steps=2,
            **settings,
        )
        trainer = Trainer(bert, args, train_dataset=sentences, eval_dataset=sentences[:2], callbacks=list(callbacks))
        trainer.train()
        return trainer

    return train


def test_the_order_of_events_is_the_one_shown(run):
    from transformers import TrainerCallback

    seen: list[str] = []

    class Recorder(TrainerCallback):
        def __getattribute__(self, name: str):
            return lambda *args, **kwargs: seen.append(name) if name.startswith("on_") else None

    run([Recorder()], logging_steps=1, eval_strategy="steps", eval_steps=2)
    (shown,) = all_blocks(kind="events")
    assert seen == ["on_init_end", *shown.text.split()]


def listed_files() -> set[str]:
    table = TRAINING.split("## Checkpoints")[1].split("## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([\w.]+)`", row.split("|")[1])}


def test_a_checkpoint_holds_the_files_listed(run, tmp_path):
    run(fp16=True)
    assert {path.name for path in (tmp_path / "out" / "checkpoint-2").iterdir()} == listed_files()


def test_a_checkpoint_of_the_model_alone_lacks_what_the_page_says(run, tmp_path):
    run(fp16=True, save_only_model=True)
    left_out = {"optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state.pth", "loop_state.json"}
    assert {path.name for path in (tmp_path / "out" / "checkpoint-2").iterdir()} == listed_files() - left_out
