"""Adapters that the device cannot compute."""

import pytest

from tests.conftest import refusal
from tests.tiny import tiny

peft = pytest.importorskip("peft", reason="PEFT is not installed")


def with_shira():
    config = peft.ShiraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"])
    return peft.get_peft_model(tiny("BertForSequenceClassification"), config)


@pytest.fixture
def make(make_trainer):
    rows = [{"input_ids": [1, 2 + i, 3], "labels": i % 2} for i in range(8)]
    return lambda model: make_trainer({"model": model, "train_dataset": rows}, max_steps=1)


def test_an_adapter_of_sparse_tensors_is_refused_before_training_on_mps(mps, make):
    trainer = make(with_shira())
    said = refusal(trainer.train)
    assert "has an adapter of PEFT's SHIRA, which computes with sparse tensors, and torch" in said
    assert said.endswith("Use another adapter, such as LoRA, or train on the CPU with use_cpu=True.")
    assert trainer.state.global_step == 0


def test_an_adapter_of_sparse_tensors_trains_on_the_cpu(make):
    trainer = make(with_shira())
    trainer.train()
    assert trainer.state.global_step == 1
