"""Loading weights takes no second copy of them, on the host or on the simulated device."""

from __future__ import annotations

import gc
import json
import os
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from mps_trainer import Trainer
from mps_trainer.scripts.loading import straight_to_device
from tests import run_python
from tests.checkpoints.loading_memory import CASES, size
from tests.conftest import examples

MOST = 1.2  # times the weights


@pytest.fixture(scope="module")
def measured():
    done = run_python("-m", "tests.checkpoints.loading_memory")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.integration
@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="measures as Linux does")
@pytest.mark.parametrize("case", CASES)
def test_loading_takes_little_more_memory_than_the_weights(measured, case):
    assert measured[case]["same"]
    assert measured[case]["peak"] <= MOST


def test_threads_of_transformers_are_on_again_afterwards(monkeypatch):
    args = SimpleNamespace(device=torch.device("mps"), fsdp=[])
    monkeypatch.delenv("HF_DEACTIVATE_ASYNC_LOAD", raising=False)
    with straight_to_device(args):
        assert os.environ["HF_DEACTIVATE_ASYNC_LOAD"] == "1"
    assert "HF_DEACTIVATE_ASYNC_LOAD" not in os.environ
    args.device = torch.device("cpu")
    with straight_to_device(args) as device:
        assert device == {}
        assert "HF_DEACTIVATE_ASYNC_LOAD" not in os.environ


def test_model_init_makes_no_second_model(make_args, mps):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.large, self.head = nn.Linear(6000, 6000), nn.Linear(4, 2)
            self.large.requires_grad_(False)

        def forward(self, x, labels):
            return {"loss": nn.functional.cross_entropy(self.head(x), labels)}

    trainer = Trainer(args=make_args(max_steps=1), train_dataset=examples(8), model_init=Model)
    gc.collect()
    others = mps.counters()["bytes_live"] - size(trainer.model)  # earlier tests have left these
    for _ in range(2):
        mps.reset()
        trainer.train()
        assert mps.counters()["bytes_peak"] - others <= MOST * size(trainer.model)
