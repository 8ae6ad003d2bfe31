"""Gradients are clipped in the optimizer's step, unless somebody looks at them before or after it."""

import functools

import pytest
import torch

from mps_trainer import Trainer
from tests.conftest import callback, logged, weights

pytestmark = pytest.mark.every_device
CLIP = 0.05


def norm_of(model):
    return torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()]).item()


def in_event(norms, name):
    return {"callbacks": [callback(**{name: lambda model, **_: norms.append(norm_of(model))})]}


def in_method(norms):
    class Looking(Trainer):
        def _get_grad_norm(self, model, grad_norm=None):
            norms.append(norm_of(model))
            return super()._get_grad_norm(model, grad_norm)

    return {"kind": Looking}


def in_step(norms):
    def wrap(model, optimizer, **_):
        step = optimizer.step
        optimizer.step = lambda *args, **kwargs: norms.append(norm_of(model)) or step(*args, **kwargs)

    return {"callbacks": [callback(on_train_begin=wrap)]}


EVENTS = [functools.partial(in_event, name=name) for name in ("on_pre_optimizer_step", "on_optimizer_step")]


@pytest.mark.parametrize("look", [*EVENTS, in_method, in_step])
def test_who_looks_sees_them_clipped_and_nothing_else_changes(trained, look):
    norms = []
    runs = [trained(given, max_steps=4, max_grad_norm=CLIP) for given in ({}, look(norms))]
    assert norms == pytest.approx([CLIP] * 4, rel=1e-4)
    torch.testing.assert_close(*(weights(trainer.model) for trainer in runs))
    assert min(logged(runs[0], "grad_norm")) > CLIP


def test_parameters_that_the_optimizer_does_not_have_count_in_the_norm_as_in_torch(make_trainer, make_model):
    model = make_model()
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    seen = []
    watcher = callback(on_step_end=lambda **_: seen.append(model.hidden.weight.grad))
    given = {"model": model, "optimizers": (optimizer, None), "callbacks": [watcher]}
    make_trainer(given, max_steps=2, max_grad_norm=CLIP).train()
    assert seen == [None, None]


def test_a_subclass_that_changes_clipped_gradients_has_its_way(trained):
    class Noisy(Trainer):
        def _clip_grad_norm(self, model):
            norm = super()._clip_grad_norm(model)
            for parameter in model.parameters():
                parameter.grad = parameter.grad + 0.01 * parameter.grad.sign()
            return norm

    seen = []
    looks = callback(on_optimizer_step=lambda model, **_: seen.append(norm_of(model)))
    trainer = trained({"kind": Noisy, "callbacks": [looks]}, max_steps=2, max_grad_norm=CLIP)
    numbers = sum(parameter.numel() for parameter in trainer.model.parameters())
    assert max(seen) <= CLIP + 0.01 * numbers**0.5  # clipped, and the noise on top
    assert min(seen) > CLIP
    assert min(logged(trainer, "grad_norm")) > 2 * max(seen)


def thaw(model, state, **_):
    model.hidden.requires_grad_(state.global_step >= 1)


def add(model, optimizer, state, **_):
    if state.global_step == 1:
        model.norm.bias = torch.nn.Parameter(model.norm.bias.detach().clone())
        optimizer.param_groups[0]["params"].append(model.norm.bias)


def swap(model, optimizer, state, **_):
    if state.global_step == 1:
        old, new = model.norm.bias, torch.nn.Parameter(model.norm.bias.detach().clone())
        model.norm.bias = new
        for group in optimizer.param_groups:
            group["params"] = [new if each is old else each for each in group["params"]]


@pytest.mark.parametrize(("change", "place"), [(thaw, "hidden.weight"), (add, "norm.bias"), (swap, "norm.bias")])
def test_parameters_changed_during_a_run_are_cleared_and_count_in_the_norm(trained, make_model, change, place):
    seen, runs = [], []
    looks = callback(on_step_begin=change, on_step_end=lambda model, **_: seen.append(model.get_parameter(place).grad))
    for optim in ("adamw_torch_fused", "adamw_torch"):  # the second is clipped by torch
        model = make_model()
        model.hidden.requires_grad_(change is not thaw)
        settings = {"max_steps": 3, "max_grad_norm": CLIP, "logging_steps": 1, "optim": optim}
        runs.append(trained({"model": model, "callbacks": [looks]}, **settings))
    assert seen == [None] * 6
    assert logged(runs[0], "grad_norm") == pytest.approx(logged(runs[1], "grad_norm"), rel=1e-5)
    torch.testing.assert_close(*(weights(trainer.model) for trainer in runs))
