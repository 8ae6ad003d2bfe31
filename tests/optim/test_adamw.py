"""AdamW and clipping in few kernels: the numbers of torch's own, and its state."""

import copy
import pickle

import pytest
import torch
from torch import nn

from mps_trainer.devices import ACCELERATORS
from mps_trainer.optim import adamw
from mps_trainer.optim.adamw import AdamW, total_norm

pytestmark = pytest.mark.every_device
RATE = 0.05


def network(device):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 1)).to(device)


def groups(model, decay=0.1):
    parameters = list(model.parameters())
    return [{"params": parameters[::2], "weight_decay": decay}, {"params": parameters[1::2], "weight_decay": 0.0}]


def differentiate(model, step):
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(6, 4, generator=generator).to(next(model.parameters()).device)
    model.zero_grad()
    model(inputs).square().sum().backward()


def train(model, optimizer, steps, clip=1.0, first=0):
    """The norms; `optimizer` clips in its step if it can."""
    norms = []
    for step in range(first, first + steps):
        differentiate(model, step)
        norm = optimizer.clip_at_step(model.parameters(), clip) if isinstance(optimizer, AdamW) else None
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), clip) if norm is None else norm)
        optimizer.step()
    return torch.stack(norms).cpu()


def pair(device, decay=0.1, **settings):
    models = network(device), network(device)
    kinds = (AdamW, torch.optim.AdamW)
    return models, [
        kind(groups(model, decay), lr=RATE, fused=True, **settings) for kind, model in zip(kinds, models, strict=True)
    ]


def assert_same(models):
    first, second = (model.state_dict() for model in models)
    torch.testing.assert_close(first, second)


@pytest.mark.parametrize("clip", [0.01, 1e6])
@pytest.mark.parametrize("decay", [0.1, 0.0])  # groups that differ, and groups that are one to the kernel
def test_numbers_are_those_of_torch(device, clip, decay):
    models, optimizers = pair(device, decay, betas=(0.8, 0.95), eps=1e-6)
    norms = [train(*each, steps=10, clip=clip) for each in zip(models, optimizers, strict=True)]
    torch.testing.assert_close(*norms)
    assert (norms[0] > clip).all() == (clip < 1)
    assert_same(models)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("ours_first", [True, False])
def test_state_goes_on_in_torch_and_comes_from_there(device, ours_first, fused):
    models, optimizers = pair(device)
    for each in zip(models, optimizers, strict=True):
        train(*each, steps=3)
    last = network(device)
    last.load_state_dict(models[0].state_dict())
    kind, settings = (torch.optim.AdamW, {"fused": fused}) if ours_first else (AdamW, {"fused": True})
    other = kind(groups(last), lr=RATE, **settings)
    other.load_state_dict(copy.deepcopy(optimizers[0 if ours_first else 1].state_dict()))
    train(last, other, steps=3, first=3)
    train(models[1], optimizers[1], steps=3, first=3)
    assert_same((last, models[1]))
    assert {float(each["step"]) for each in other.state.values()} == {6.0}


@pytest.mark.parametrize("when", [0, 2])
def test_parameters_that_are_trained_only_sometimes_are_counted_by_themselves(device, when):
    models, optimizers = pair(device)
    for model, optimizer in zip(models, optimizers, strict=True):
        for step in range(5):
            differentiate(model, step)
            if step == when:
                model[2].weight.grad = None
            if not (isinstance(optimizer, AdamW) and optimizer.clip_at_step(model.parameters(), 0.5) is not None):
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    assert_same(models)
    assert float(optimizers[0].state[models[0][2].weight]["step"]) == 4.0


def test_parameters_that_are_never_trained_have_no_state_and_do_not_slow_the_others_down(device):
    models, optimizers = pair(device)
    for model, optimizer in zip(models, optimizers, strict=True):
        model[0].requires_grad_(False)
        train(model, optimizer, steps=3)
    assert_same(models)
    assert models[0][0].weight not in optimizers[0].state


@pytest.mark.parametrize("settings", [{"amsgrad": True}, {"maximize": True}])
def test_what_the_one_kernel_leaves_out_is_left_to_torch(device, settings):
    models, optimizers = pair(device, **settings)
    for each in zip(models, optimizers, strict=True):
        train(*each, steps=3)
    assert_same(models)


def test_groups_that_come_later_or_change_are_as_in_torch(device):
    models, optimizers = pair(device, decay=0.0)
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, steps=2)
        optimizer.param_groups[0]["lr"] = RATE / 10
        train(model, optimizer, steps=2, first=2)
        model.append(nn.Linear(1, 1, device=device))
        nn.init.constant_(model[4].weight, 0.5)
        nn.init.zeros_(model[4].bias)
        optimizer.add_param_group({"params": list(model[4].parameters()), "weight_decay": 0.2})
        train(model, optimizer, steps=2, first=4)
    assert_same(models)


def everything(optimizer, weight):
    optimizer.state.clear()


def of_one(optimizer, weight):
    optimizer.state[weight] = {}


def one_mean(optimizer, weight):
    optimizer.state[weight]["exp_avg"] = torch.zeros_like(weight)


@pytest.mark.parametrize("throw_away", [everything, of_one, one_mean])
def test_state_that_is_thrown_away_begins_anew(device, throw_away):
    models, optimizers = pair(device)
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, steps=2)
        throw_away(optimizer, model[0].weight)
        train(model, optimizer, steps=2, first=2)
    assert_same(models)


def test_rates_that_differ_only_after_the_first_step_stay_in_few_kernels(device):
    """As warmup from zero has it, with a rate for each layer."""
    models, optimizers = pair(device, decay=0.0)
    for model, optimizer in zip(models, optimizers, strict=True):
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        train(model, optimizer, steps=1)
        for number, group in enumerate(optimizer.param_groups, start=1):
            group["lr"] = RATE / number
        train(model, optimizer, steps=2, first=1)
    assert_same(models)


def test_a_group_may_be_empty_and_only_some_parameters_trained(device):
    model = network(device)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    biases = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = AdamW([{"params": []}, {"params": biases}], lr=RATE, fused=True)
    before = [bias.detach().clone() for bias in biases]
    train(model, optimizer, steps=1)
    assert not any(map(torch.equal, before, biases))


def test_hooks_and_a_closure_are_called(device):
    model = network(device)
    optimizer = AdamW(groups(model), lr=RATE, fused=True)
    train(model, optimizer, steps=1)
    called = []
    hooks = [optimizer.register_step_pre_hook(lambda *_: called.append("before"))]
    hooks.append(optimizer.register_step_post_hook(lambda *_: called.append("after")))
    optimizer.step()
    assert called == ["before", "after"]
    for hook in hooks:
        hook.remove()
    assert optimizer.step(lambda: called.append("closure") or 3.0) == 3.0
    assert called[2:] == ["closure"]


def test_hooks_change_gradients_as_in_torch(device):
    models, optimizers = pair(device)

    def halve(optimizer, args, kwargs):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = parameter.grad.sign()

    for model, optimizer in zip(models, optimizers, strict=True):
        hook = optimizer.register_step_pre_hook(halve)
        train(model, optimizer, steps=2)
        hook.remove()
        train(model, optimizer, steps=1, first=2)
    assert_same(models)


def test_the_profiler_sees_the_step(device):
    model = network(device)
    optimizer = AdamW(groups(model), lr=RATE, fused=True)
    with torch.profiler.profile() as profile:
        train(model, optimizer, steps=1)
    assert "Optimizer.step#AdamW.step" in {event.key for event in profile.key_averages()}


def test_clipping_waits_for_no_step_that_hooks_look_into(device):
    model = network(device)
    optimizer = AdamW(groups(model), lr=RATE, fused=True)
    optimizer.register_step_pre_hook(lambda *_: None)
    differentiate(model, 0)
    assert optimizer.clip_at_step(model.parameters(), 1.0) is None


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model_and: pickle.loads(pickle.dumps(model_and))])
def test_a_copy_goes_on_by_itself(device, copied):
    model = network(device)
    optimizer = AdamW(groups(model), lr=RATE, fused=True)
    train(model, optimizer, steps=2)
    other, its_optimizer = copied((model, optimizer))
    train(other, its_optimizer, steps=2, first=2)
    train(model, optimizer, steps=2, first=2)
    assert_same((model, other))


def test_an_overflow_leaves_weights_and_counter_alone(device):
    model = network(device)
    optimizer = AdamW(groups(model), lr=RATE, fused=True)
    scaler = torch.amp.GradScaler(device, init_scale=4.0)
    seen = []
    for step in range(3):
        differentiate(model, step)
        for parameter in model.parameters():
            parameter.grad.mul_(4.0 if step != 1 else float("inf"))
        scaler.scale(torch.ones((), device=device))  # makes the scale
        scaler.unscale_(optimizer)
        optimizer.clip_at_step(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        seen.append([parameter.detach().cpu().clone() for parameter in model.parameters()])
    assert all(map(torch.equal, seen[0], seen[1]))
    assert not any(map(torch.equal, seen[1], seen[2]))
    assert float(next(iter(optimizer.state.values()))["step"]) == 2.0


def test_a_scale_and_clipping_come_out_together(device):
    """Without unscale_, the scale is taken out in the step, as what is clipped is."""
    models, optimizers = pair(device)
    for model, optimizer in zip(models, optimizers, strict=True):
        differentiate(model, 0)
        if isinstance(optimizer, AdamW):
            for parameter in model.parameters():
                parameter.grad.mul_(8.0)
            optimizer.clip_at_step(model.parameters(), 8 * 0.5)
            optimizer.grad_scale = torch.full((), 8.0, device=device)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    assert_same(models)


@pytest.mark.parametrize("joined", [16, 2**24])
def test_the_norm_is_that_of_torch_in_any_number_of_pieces(device, joined, monkeypatch):
    monkeypatch.setattr(adamw, "_JOINED", joined)
    monkeypatch.setattr(adamw, "_ALONE", 30)
    gradients = [torch.randn(shape, device=device) for shape in [(3, 4), (), (5,), (6, 7), (2, 2, 2)]]
    torch.testing.assert_close(total_norm(gradients), nn.utils.get_total_norm(gradients))


def test_a_norm_that_is_not_finite_shows(device):
    gradients = [torch.ones(2, device=device), torch.tensor([1.0, float("nan")], device=device)]
    assert torch.isnan(total_norm(gradients))


def test_where_the_kernel_ignores_what_it_is_to_divide_by_it_is_not_relied_on(device, monkeypatch):
    """mps before torch 2.13: an overflow would spoil the weights, and clipping would not happen."""
    monkeypatch.setattr(ACCELERATORS[device], "divides_gradients", lambda torch_version: False)
    model = network(device)
    optimizer = AdamW(groups(model), lr=RATE, fused=True)
    differentiate(model, 0)
    assert optimizer.clip_at_step(model.parameters(), 0.1) is None
    before = [parameter.detach().clone() for parameter in model.parameters()]
    scaler = torch.amp.GradScaler(device, init_scale=4.0)
    scaler.scale(torch.ones((), device=device))  # makes the scale
    next(model.parameters()).grad.fill_(float("inf"))
    real = torch._fused_adamw_

    def deaf(*args, grad_scale=None, found_inf=None, **settings):
        real(*args, **settings)

    monkeypatch.setattr(torch, "_fused_adamw_", deaf)
    scaler.step(optimizer)
    assert all(map(torch.equal, before, model.parameters()))
