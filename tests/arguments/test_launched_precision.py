"""A launcher chooses the number format of autocast, as in transformers."""

import pytest
import torch
import transformers

from mps_trainer import TrainingArguments
from tests.conftest import refusal

VARIABLE = "ACCELERATE_MIXED_PRECISION"


@pytest.mark.parametrize("asked", ["no", "fp16", "bf16", None])
@pytest.mark.parametrize("flags", [{}, {"bf16": True}, {"fp16": True}], ids=str)
def test_it_is_what_transformers_takes_it_for(monkeypatch, tmp_path, asked, flags):
    if asked is not None:
        monkeypatch.setenv(VARIABLE, asked)
    ours = TrainingArguments(str(tmp_path), **flags)
    theirs = transformers.TrainingArguments(str(tmp_path), use_cpu=True, **flags)
    assert ours.mixed_precision == theirs.mixed_precision
    assert (ours.bf16, ours.fp16) == (theirs.bf16, theirs.fp16)


@pytest.mark.every_device
def test_training_autocasts_to_it(make_trainer, monkeypatch):
    monkeypatch.setenv(VARIABLE, "bf16")
    trainer = make_trainer(max_steps=1)
    monkeypatch.delenv(VARIABLE)
    seen = set()
    trainer.model.hidden.register_forward_hook(lambda module, args, output: seen.add(output.dtype))
    trainer.train()
    assert seen == {torch.bfloat16}
    assert trainer.accelerator.mixed_precision == "bf16"


def test_another_format_is_refused_by_the_variables_name(monkeypatch):
    monkeypatch.setenv(VARIABLE, "fp8")
    assert refusal(TrainingArguments, "out").startswith(
        f"{VARIABLE}='fp8' is not accepted: it must be one of no, fp16, bf16"
    )
