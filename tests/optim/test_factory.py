"""Optimizers that a device does not have are refused by name, before the first step."""

import contextlib

import pytest
import torch
from torch import nn
from transformers import trainer_optimizer

from mps_trainer.errors import MissingPackageError
from mps_trainer.optim.factory import class_and_settings
from tests.conftest import refusal

PAGED = [f"paged_{name}_{bits}bit" for name in ("adamw", "ademamix", "lion") for bits in (8, 32)]
IN_8_BITS = ["adamw_8bit", "adamw_bnb_8bit", "ademamix_8bit", "lion_8bit", "rmsprop_bnb_8bit"]


@pytest.mark.parametrize("optim", [*PAGED, *IN_8_BITS])
def test_paged_and_8_bit_optimizers_are_refused_on_mps_in_one_line(optim, make_args, mps):
    text = refusal(class_and_settings, make_args(optim=optim))
    assert text.startswith(f"optim='{optim}' does not work on mps: ")
    assert "Use optim='adamw_torch_8bit'" in text


@pytest.mark.parametrize("optim", ["lion_32bit", "ademamix", "rmsprop_bnb", "rmsprop_bnb_32bit", "adamw_torch_8bit"])
def test_others_are_not(optim, make_args, mps):
    with contextlib.suppress(MissingPackageError):
        class_and_settings(make_args(optim=optim))


def test_an_optimizer_that_an_older_transformers_lacks_is_refused(make_args, monkeypatch):
    monkeypatch.delitem(trainer_optimizer._OPTIMIZER_HANDLERS, "sgd")
    text = refusal(class_and_settings, make_args(optim="sgd"))
    assert text.startswith("optim='sgd' ")
    assert text.endswith("cannot be used: the installed release of transformers does not have it")


class Waves(nn.Module):
    """Has complex weights, like a Fourier neural operator."""

    def __init__(self):
        super().__init__()
        self.line, self.waves = nn.Linear(4, 2), nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))

    def forward(self, x, labels=None):
        logits = torch.view_as_real(self.line(x).to(torch.complex64) @ self.waves)[..., 0]
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.every_device
@pytest.mark.parametrize("settings", [{}, {"optim": "adamw_torch_fused"}])
def test_complex_weights_are_refused_by_a_fused_optimizer_with_one_that_takes_them(make_trainer, settings):
    text = refusal(make_trainer({"model": Waves()}, max_steps=1, **settings).train)
    assert "parameter 'waves' of Waves is complex64, and optim='adamw_torch_fused'" in text
    assert text.endswith("Use optim='adamw_torch'.")


@pytest.mark.every_device
def test_complex_weights_train_with_the_other_one(trained):
    assert trained({"model": Waves()}, max_steps=1, optim="adamw_torch").state.global_step == 1


@pytest.mark.every_device
def test_frozen_complex_weights_train_with_a_fused_optimizer(trained):
    model = Waves()
    model.waves.requires_grad_(False)
    assert trained({"model": model}, max_steps=1, optim="adamw_torch_fused").state.global_step == 1
