"""AdamW that clips in its step computes the numbers of torch's own, and has its state."""

import copy
import pickle
import weakref

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


def gradients(model):
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def differentiate(model, step):
    generator = torch.Generator().manual_seed(step)
    first = next(model.parameters())
    model.zero_grad()
    model(torch.randn(6, 4, generator=generator).to(first.device, first.dtype)).square().sum().backward()


def update(model, optimizer, clip=1.0):
    """Clips and steps; returns the norm. An AdamW of this package clips in its step if it can."""
    norm = optimizer.clip_next_step(gradients(model), clip) if isinstance(optimizer, AdamW) else None
    norm = nn.utils.clip_grad_norm_(model.parameters(), clip) if norm is None else norm
    optimizer.step()
    return norm


def train(model, optimizer, steps, clip=1.0, first=0):
    norms = []
    for step in range(first, first + steps):
        differentiate(model, step)
        norms.append(update(model, optimizer, clip))
    return torch.stack(norms).cpu()


def ours(model, decay=0.1, kind=AdamW, **settings):
    parameters = list(model.parameters())
    groups = [{"params": parameters[::2], "weight_decay": decay}, {"params": parameters[1::2], "weight_decay": 0.0}]
    return kind(groups, **{"lr": RATE, "fused": True, **settings})


def pair(device, **settings):
    models = network(device), network(device)
    return models, [ours(models[0], **settings), ours(models[1], kind=torch.optim.AdamW, **settings)]


def assert_same(models):
    torch.testing.assert_close(*(model.state_dict() for model in models))


@pytest.mark.parametrize("clip", [0.01, 1e6])
@pytest.mark.parametrize(
    "settings", [{"betas": (0.8, 0.95), "eps": 1e-6}, {"amsgrad": True}, {"maximize": True}, {"decay": 0.0}]
)
def test_step_equals_torch(device, clip, settings):
    models, optimizers = pair(device, **settings)
    norms = [train(*each, steps=5, clip=clip) for each in zip(models, optimizers, strict=True)]
    torch.testing.assert_close(*norms)
    assert (norms[0] > clip).all() == (clip < 1)
    assert_same(models)


CHANGES = {
    "frozen": lambda model, optimizer: model[0].requires_grad_(False).zero_grad(),
    "no gradient": lambda model, optimizer: setattr(model[2].weight, "grad", None),
    "state cleared": lambda model, optimizer: optimizer.state.clear(),
    "state emptied": lambda model, optimizer: optimizer.state.update({model[0].weight: {}}),
    "state replaced": lambda model, optimizer: optimizer.state[model[0].weight].update(
        exp_avg=torch.zeros_like(model[0].weight)
    ),
}


@pytest.mark.parametrize(("change", "when"), [("frozen", 0), ("no gradient", 0), *((change, 2) for change in CHANGES)])
def test_changes_between_steps_have_the_effect_that_they_have_in_torch(device, change, when):
    models, optimizers = pair(device)
    counts = []
    for model, optimizer in zip(models, optimizers, strict=True):
        for step in range(5):
            differentiate(model, step)
            if step == when:
                CHANGES[change](model, optimizer)
            update(model, optimizer, 0.5)
        states = [optimizer.state.get(parameter, {}) for parameter in model.parameters()]
        counts.append([float(state.get("step", 0)) for state in states])
    assert_same(models)
    assert counts[0] == counts[1]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("ours_first", [True, False])
def test_state_dict_is_exchanged_with_torch(device, ours_first, fused):
    models, optimizers = pair(device)
    for each in zip(models, optimizers, strict=True):
        train(*each, steps=3)
    last = network(device)
    last.load_state_dict(models[0].state_dict())
    kind, settings = (torch.optim.AdamW, {"fused": fused}) if ours_first else (AdamW, {"fused": True})
    other = ours(last, kind=kind, **settings)
    other.load_state_dict(copy.deepcopy(optimizers[0 if ours_first else 1].state_dict()))
    train(last, other, steps=3, first=3)
    train(models[1], optimizers[1], steps=3, first=3)
    assert_same((last, models[1]))
    assert {float(each["step"]) for each in other.state.values()} == {6.0}


def test_group_of_two_number_formats_equals_torch(device):
    models = network(device), network(device)
    norms = []
    for model, kind in zip(models, (AdamW, torch.optim.AdamW), strict=True):
        optimizer = kind(model.parameters(), lr=RATE, fused=True)
        for step in range(3):
            for layer in model:
                layer.float()
            differentiate(model, step)
            for parameter in model[2].parameters():
                half = parameter.grad.bfloat16()
                parameter.data, parameter.grad = parameter.data.bfloat16(), None
                parameter.grad = half
            norms.append(update(model, optimizer))
    torch.testing.assert_close(norms[:3], norms[3:], rtol=1e-3, atol=0)
    torch.testing.assert_close(*(model.state_dict() for model in models), rtol=1e-2, atol=1e-3)


def test_model_on_two_devices_equals_torch(device):
    models, optimizers = pair(device)
    for model, optimizer in zip(models, optimizers, strict=True):
        differentiate(model, 0)
        model[3].cpu()
        update(model, optimizer, 0.01)
    assert_same(models)


def test_group_added_or_changed_later_equals_torch(device):
    models, optimizers = pair(device, decay=0.0)
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, steps=2)
        optimizer.param_groups[0]["lr"] = RATE / 10
        train(model, optimizer, steps=2, first=2)
        model.append(nn.Linear(1, 1, device=device))
        nn.init.constant_(model[4].weight, 0.5)
        nn.init.zeros_(model[4].bias)
        optimizer.add_param_group({"params": list(model[4].parameters()), "weight_decay": 0.2})
        optimizer.add_param_group({"params": []})
        train(model, optimizer, steps=2, first=4)
    assert_same(models)


def test_hooks_and_closure_work_as_in_torch(device):
    model = network(device)
    optimizer = ours(model)
    train(model, optimizer, steps=1)
    called = []
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    assert optimizer.step(lambda: called.append("closure") or 3.0) == 3.0
    assert called == ["before", "closure", "after"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model_and: pickle.loads(pickle.dumps(model_and))])
def test_copy_goes_on_by_itself(device, copied):
    model = network(device)
    optimizer = ours(model)
    train(model, optimizer, steps=2)
    other, its_optimizer = copied((model, optimizer))
    train(other, its_optimizer, steps=2, first=2)
    train(model, optimizer, steps=2, first=2)
    assert_same((model, other))


def test_overflow_changes_neither_weights_nor_counts(device):
    model = network(device)
    optimizer = ours(model)
    scaler = torch.amp.GradScaler(device, init_scale=4.0)
    seen = []
    for step in range(3):
        differentiate(model, step)
        for parameter in model.parameters():
            parameter.grad.mul_(4.0 if step != 1 else float("inf"))
        scaler.scale(torch.ones((), device=device))  # makes the scale
        scaler.unscale_(optimizer)
        optimizer.clip_next_step(gradients(model), 0.1)
        scaler.step(optimizer)
        scaler.update()
        seen.append([parameter.detach().cpu().clone() for parameter in model.parameters()])
    assert all(map(torch.equal, seen[0], seen[1]))
    assert not any(map(torch.equal, seen[1], seen[2]))
    assert {float(each["step"]) for each in optimizer.state.values()} == {2.0}


def test_scale_of_float16_is_taken_out_in_the_step(device):
    models, optimizers = pair(device)
    for model, optimizer in zip(models, optimizers, strict=True):
        differentiate(model, 0)
        for parameter in model.parameters():
            parameter.grad.mul_(8.0)
        optimizer.grad_scale = torch.full((), 8.0, device=device)
        optimizer.step()
    assert_same(models)


@pytest.mark.parametrize("joined", [16, 2**24])
def test_norm_equals_torch_in_any_number_of_pieces(device, joined, monkeypatch):
    monkeypatch.setattr(adamw, "_JOINED", joined)
    monkeypatch.setattr(adamw, "_ALONE", 30)
    grads = [torch.randn(shape, device=device) for shape in [(3, 4), (), (5,), (6, 7), (2, 2, 2)]]
    torch.testing.assert_close(total_norm(grads), nn.utils.get_total_norm(grads))
    grads[1].fill_(float("nan"))
    assert torch.isnan(total_norm(grads))
    assert total_norm([]) == 0


def test_norm_copies_one_piece_at_a_time(device, monkeypatch):
    """All pieces together would have the memory of all small gradients."""
    pieces, cat = [], torch.cat

    def join(tensors):
        assert not any(piece() is not None for piece in pieces)
        joined = cat(tensors)
        pieces.append(weakref.ref(joined))
        return joined

    monkeypatch.setattr(adamw, "_JOINED", 16)
    monkeypatch.setattr(torch, "cat", join)
    total_norm([torch.ones(8, device=device) for _ in range(8)])
    assert len(pieces) == 4


def test_kernel_that_ignores_the_scale_does_not_clip(device, monkeypatch):
    """On mps before torch 2.13, an overflow would spoil the weights, and clipping would not happen."""
    monkeypatch.setattr(ACCELERATORS[device], "divides_gradients", lambda torch_version: False)
    model = network(device)
    optimizer = ours(model)
    differentiate(model, 0)
    assert optimizer.clip_next_step(gradients(model), 0.1) is None
    before = [parameter.detach().clone() for parameter in model.parameters()]
    scaler = torch.amp.GradScaler(device, init_scale=4.0)
    scaler.scale(torch.ones((), device=device))  # makes the scale
    next(model.parameters()).grad.fill_(float("inf"))
    real = torch._fused_adamw_
    deaf = {"grad_scale": None, "found_inf": None}
    monkeypatch.setattr(torch, "_fused_adamw_", lambda *args, **settings: real(*args, **{**settings, **deaf}))
    scaler.step(optimizer)
    assert all(map(torch.equal, before, model.parameters()))
