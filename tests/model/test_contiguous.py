"""Parameters are contiguous when training begins on mps, and still the parameters that they were."""

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from mps_trainer.devices.known_faults import faults_to_warn_of
from mps_trainer.model import preparation
from mps_trainer.model.patches import contiguous
from mps_trainer.model.patches.contiguous import make_contiguous, warn_of_known_faults
from tests.conftest import assert_same_weights, messages_with, weights


class Tied(nn.Module):
    """One matrix, transposed in memory, for two layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.first.weight = self.second.weight = nn.Parameter(torch.randn(4, 4).t())

    def forward(self, x, labels=None):
        logits = self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_a_transposed_parameter_is_contiguous_in_training_and_stays_tied(mps, make_trainer):
    transposed, plain = Tied(), Tied()
    plain.first.weight = plain.second.weight = nn.Parameter(plain.first.weight.detach().contiguous())
    runs = [make_trainer({"model": model}, max_steps=4, learning_rate=1e-2) for model in (transposed, plain)]
    assert not transposed.first.weight.is_contiguous()
    for run in runs:
        run.train()
    assert transposed.first.weight is transposed.second.weight
    assert transposed.first.weight.is_contiguous()
    held = [p for group in runs[0].optimizer.param_groups for p in group["params"]]
    assert sum(p is transposed.first.weight for p in held) == 1
    assert_same_weights(weights(transposed), weights(plain))


def test_a_given_optimizer_keeps_its_parameters_and_its_state_follows(mps, make_trainer):
    model = Tied().to("mps")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model(torch.randn(3, 4, device="mps"), torch.tensor([0, 1, 0], device="mps"))["loss"].backward()
    optimizer.step()
    assert not optimizer.state[model.first.weight]["exp_avg"].is_contiguous()
    trainer = make_trainer({"model": model, "optimizers": (optimizer, None)}, max_steps=2)
    before = weights(model)
    trainer.train()
    assert optimizer.state[model.first.weight]["exp_avg"].is_contiguous()
    assert not torch.equal(before["first.weight"], weights(model)["first.weight"])


def test_the_cpu_leaves_parameters_as_they_are(make_trainer):
    model = Tied()
    make_trainer({"model": model}, max_steps=1).train()
    assert not model.first.weight.is_contiguous()


def test_values_stay_and_so_do_those_that_share_memory_alike():
    model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)])
    shared = torch.randn(3, 3).t()
    for layer in model[:2]:
        layer.weight = nn.Parameter(shared)  # two parameters in one memory
    before = weights(model)
    make_contiguous(model)
    assert all(parameter.is_contiguous() for parameter in model.parameters())
    assert_same_weights(before, weights(model))
    assert model[0].weight.data_ptr() == model[1].weight.data_ptr()


def test_a_view_of_another_parameter_is_left_with_a_warning(caplog):
    model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    model[1].weight = nn.Parameter(model[0].weight.data.t())
    make_contiguous(model)
    assert model[1].weight.data_ptr() == model[0].weight.data_ptr()
    assert "1.weight: not contiguous, and in the memory of other parameters" in caplog.text


def test_a_parameter_made_of_other_tensors_as_those_of_torchao_is_left_as_it_is():
    model = nn.Linear(3, 3)
    model.weight = nn.Parameter(TwoTensor(torch.randn(3, 3).t(), torch.randn(3, 3).t()), requires_grad=False)
    make_contiguous(model)
    assert not model.weight.is_contiguous()


@pytest.mark.parametrize("version", [None, "14.5"])
def test_known_faults_are_told_once_when_training_begins_on_mps(mps, make_trainer, monkeypatch, caplog, version):
    warn_of_known_faults.cache_clear()
    monkeypatch.setattr(preparation, "macos", lambda: version)
    monkeypatch.setattr(contiguous.torch, "__version__", "2.9.0")
    for _ in range(2):
        make_trainer(max_steps=1).train()
    told = messages_with(caplog, "known fault")
    assert len(told) == len(set(told)) == len(faults_to_warn_of("2.9.0", version or ""))
    assert bool(told) == (version is not None)  # a simulated device is of no Mac
    assert all(each.startswith("torch 2.9.0 on macOS 14.5 has a known fault: ") for each in told)
    warn_of_known_faults.cache_clear()
