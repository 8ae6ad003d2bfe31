"""Whatever is changed in a checkpoint: it is resumed from, or refused by an error of the package."""

import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import strategies as st

import mps_trainer
from mps_trainer import MisconfigurationException, Trainer
from mps_trainer.checkpoints import manifest
from tests.conftest import Classifier, examples
from tests.dropin.conftest import Library
from tests.edits import looks, mutate, try_edits

DATA = examples(16)
KINDS = [
    {"lr_scheduler_type": "linear", "optim": "adamw_torch"},
    {"lr_scheduler_type": "cosine", "optim": "sgd"},
    {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 1},
]


def make_trainer(folder: str, **settings: object) -> Trainer:
    torch.manual_seed(0)
    data = {"train_dataset": DATA, "eval_dataset": DATA[:8], "logging_steps": 10}
    return Library(mps_trainer, Path(folder)).trainer(Classifier(), **{**data, **settings})


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    made = []
    for number, kind in enumerate(KINDS):
        folder = tmp_path_factory.mktemp(str(number))
        make_trainer(str(folder), max_steps=2, **{**kind, "save_strategy": "steps", "save_steps": 2}).train()
        made.append(folder / "checkpoint-2")
    return made


def check_any_edit(checkpoints, draw):
    number = draw(st.integers(0, len(KINDS) - 1))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "checkpoint-2"
        shutil.copytree(checkpoints[number], folder)
        if draw(st.integers(0, 3)):
            (folder / manifest.NAME).unlink()
        for _ in range(draw(st.integers(1, 2))):
            mutate(draw, folder)
        before = looks(folder)
        try:
            how = draw(st.sampled_from([str(folder), True]))
            trainer = make_trainer(name, max_steps=3, restore_callback_states_from_checkpoint=True, **KINDS[number])
            trainer.train(resume_from_checkpoint=how)
        except MisconfigurationException as error:
            refused = str(error)
            assert "\n" not in refused
            assert looks(folder) == before


@pytest.mark.parametrize("count", [12, pytest.param(2000, marks=pytest.mark.acceptance)])
def test_any_edit_of_a_checkpoint_is_refused_or_resumed_from(checkpoints, count):
    try_edits(count, lambda draw: check_any_edit(checkpoints, draw))
