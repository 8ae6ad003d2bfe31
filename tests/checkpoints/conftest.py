"""Checkpoint folders made by hand, as small as they can be, and a gate for those of runs."""

import json
import os
import threading

import pytest
import torch
from safetensors.torch import save_file

from mps_trainer.checkpoints import folders, manifest, writers


def names(trainer) -> list[str]:
    return [os.path.basename(folder) for folder in folders.find_checkpoints(trainer.args.output_dir)]


@pytest.fixture
def saved(trained) -> str:
    """Returns the folder of a checkpoint that a run of two steps has saved at its end."""
    trainer = trained(max_steps=2, save_strategy="steps", save_steps=2)
    return os.path.join(trainer.args.output_dir, "checkpoint-2")


@pytest.fixture
def gate(monkeypatch):
    """Checkpoints are written only while it is open."""
    opened, save = threading.Event(), writers.write_model_files
    opened.set()
    monkeypatch.setattr(writers, "write_model_files", lambda *args: (opened.wait(20), save(*args)))
    return opened


@pytest.fixture
def make_checkpoint(tmp_path):
    def make(step: int, *, listed: bool = True, save: int | None = None):
        folder = tmp_path / f"checkpoint-{step}"
        (folder / "inner").mkdir(parents=True)
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        save_file({"weight": torch.full((8,), float(step))}, folder / "model.safetensors")
        torch.save({"step": step}, folder / "optimizer.pt")
        (folder / "inner" / "vocabulary.txt").write_text("one two three")
        if listed:
            manifest.write(str(folder), step, folders.next_save(str(tmp_path)) if save is None else save)
        return folder

    return make
