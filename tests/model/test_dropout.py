"""Dropout in one kernel: the same distribution, for the time of a run."""

import copy
import pickle

import pytest
import torch
from torch import nn

from mps_trainer.model.patches.dropout import OneKernelDropout, dropout_in_one_kernel


@pytest.fixture
def inside(mps):
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.25)).to("mps")
    with dropout_in_one_kernel(model, torch.device("mps")):
        yield model[1]


def test_it_drops_and_scales(mps, inside):
    torch.manual_seed(0)
    ones = torch.ones(100, 100, device="mps", requires_grad=True)
    dropped = inside(ones)
    values, counts = dropped.detach().cpu().unique(return_counts=True)
    torch.testing.assert_close(values, torch.tensor([0.0, 1 / 0.75]))
    assert 2200 < int(counts[0]) < 2800
    dropped.sum().backward()
    torch.testing.assert_close(ones.grad.cpu(), dropped.detach().cpu())


def test_it_is_one_kernel(mps, inside):
    ones = torch.ones(4, device="mps")
    before = mps.report().operator_calls
    inside(ones)
    assert mps.report().operator_calls == before + 1


def test_copies_and_what_is_saved_are_torchs_own(mps, inside):
    ones = torch.ones(100, device="mps")
    for twin in (copy.deepcopy(inside), pickle.loads(pickle.dumps(inside))):
        assert type(twin) is nn.Dropout
        assert twin.p == inside.p
        assert torch.equal(twin.eval()(ones), ones)
    assert not torch.equal(inside(ones), ones)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_all_or_nothing(mps, inside, p):
    inside.p = p
    assert torch.equal(inside(torch.ones(4, device="mps")).cpu(), torch.full((4,), 1.0 - p))


def test_the_model_has_its_own_back_after_a_run(mps, make_trainer):
    trainer = make_trainer(max_steps=1)
    kinds = []
    trainer.model.dropout.register_forward_hook(lambda module, *_: kinds.append(type(module)))
    trainer.train()
    assert set(kinds) == {OneKernelDropout}
    assert type(trainer.model.dropout) is nn.Dropout


def test_the_cpu_keeps_its_own():
    model = nn.Sequential(nn.Dropout(0.5))
    with dropout_in_one_kernel(model, torch.device("cpu")):
        assert type(model[0]) is nn.Dropout
