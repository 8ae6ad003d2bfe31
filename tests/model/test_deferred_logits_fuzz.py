"""Random operations on the logits of a head: a head that defers them gives the losses and gradients of a plain one."""

import random
from unittest import mock

import pytest
import torch
from torch import nn

from mps_trainer.model.patches import deferred_logits
from mps_trainer.model.patches.deferred_logits import logits_deferred
from tests import installed_torch

BATCH, LENGTH, WIDTH, WORDS = 2, 5, 6, 11
CHAINS = 100  # each of the 20 seeds has so many
FACTOR = 0.5
CPU = torch.device("cpu")


class Doubled(torch.autograd.Function):
    """Doubles its input in place, as fused losses write gradients over their logits."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Squared(torch.autograd.Function):
    """Has a backward pass of its own and keeps its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


def without_grad(change):
    def changed(x, rng):
        with torch.no_grad():
            change(x)
        return x

    return changed


def index(rng):
    return rng.choice([slice(None), slice(0, 1), slice(1, None), slice(None, None, 2), 0, -1, ..., None])


VIEWS = [
    lambda x, rng: x.view(-1, x.shape[-1]),
    lambda x, rng: x.view(-1),
    lambda x, rng: x.view(x.shape[-1], -1),
    lambda x, rng: x.view(torch.int32 if x.dtype is torch.float32 else torch.int16).view(x.dtype),
    lambda x, rng: x.view_as(x),
    lambda x, rng: x.reshape(-1, x.shape[-1]),
    lambda x, rng: x.flatten(0, -2) if x.dim() > 1 else x.unsqueeze(0),
    lambda x, rng: x[index(rng)],
    lambda x, rng: x[..., :-1, :] if x.dim() > 1 else x[:-1],
    lambda x, rng: x[..., 1:],
    lambda x, rng: x.unsqueeze(0),
    lambda x, rng: x.transpose(0, -1),
    lambda x, rng: x.chunk(2, -1)[0],
    lambda x, rng: x.unbind(0)[0],
    lambda x, rng: x.expand(2, *x.shape),
    lambda x, rng: x.detach(),
    lambda x, rng: x.data,
    lambda x, rng: x.contiguous(),
    lambda x, rng: x.as_strided((2, 2), (2, 1)),
]
COPIES = [
    lambda x, rng: x.float(),
    lambda x, rng: x.float(),
    lambda x, rng: x.to(torch.float32),
    lambda x, rng: x.to(dtype=torch.float32, copy=True),
    lambda x, rng: x.type(torch.float32),
    lambda x, rng: x.to(torch.bfloat16),
    lambda x, rng: x.double(),
    lambda x, rng: x.type_as(torch.zeros(())),
    lambda x, rng: x.clone(),
    lambda x, rng: x[..., :-1, :].contiguous() if x.dim() > 1 else x.clone(),
    lambda x, rng: x * 3,
    lambda x, rng: torch.cat([x, x]),
    lambda x, rng: x @ x.mT if x.dim() > 1 else x,
    lambda x, rng: Squared.apply(x),
    lambda x, rng: torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False),
]
IN_PLACE = [
    lambda x, rng: x.mul_(FACTOR),
    lambda x, rng: x.tanh_(),
    lambda x, rng: x.copy_(2 * x),
    lambda x, rng: (torch.mul(x.detach(), 2, out=x.detach()), x)[1],
    lambda x, rng: (x.__setitem__((..., 0), 3.0), x)[1],
    lambda x, rng: (x.__setitem__(0, x[-1] * 2), x)[1],
    lambda x, rng: Doubled.apply(x),
    without_grad(lambda x: x.mul_(FACTOR)),
    without_grad(lambda x: x.__setitem__((..., 2), -4.0)),
    without_grad(lambda x: x.zero_()),
    lambda x, rng: (x.data.mul_(2), x)[1],
    lambda x, rng: (x.detach().add_(1), x)[1],
]
READS = [
    lambda x, rng: (x.argmax(-1), x)[1],
    lambda x, rng: (x.detach().float().cpu().numpy(), x)[1],
    lambda x, rng: (x.tolist(), x)[1],
    lambda x, rng: (repr(x), x)[1],
    lambda x, rng: (x.grad_fn, x)[1],
    lambda x, rng: x.requires_grad_(),
]
if installed_torch() >= (2, 15):  # before, a view that was changed in place lost hooks, or the process ended
    READS += [lambda x, rng: (x.register_hook(lambda grad: 2 * grad), x)[1], lambda x, rng: (x.retain_grad(), x)[1]]


def targets(x, rng):
    """Returns a label for each row of `x`, or probabilities."""
    draw = torch.Generator().manual_seed(rng.randrange(1000))
    if rng.random() < 0.1:
        return torch.rand(x.shape, generator=draw).to(x)
    labels = torch.randint(0, x.shape[-1], x.shape[:-1], generator=draw)
    return labels.masked_fill_(torch.rand(labels.shape, generator=draw) < 0.2, -100).to(x.device)


LOSSES = [
    *[lambda x, y, rng: nn.functional.cross_entropy(x, y)] * 6,
    lambda x, y, rng: nn.functional.cross_entropy(x, y, reduction="sum") / 7,
    lambda x, y, rng: nn.functional.cross_entropy(x, y, reduction="none").mean(),
    lambda x, y, rng: nn.functional.cross_entropy(x, y, label_smoothing=0.1),
    lambda x, y, rng: nn.functional.cross_entropy(x, y, ignore_index=0),
    lambda x, y, rng: nn.functional.cross_entropy(input=x, target=y),
    lambda x, y, rng: nn.functional.nll_loss(x.log_softmax(-1), y),
    lambda x, y, rng: x.square().mean(),
]


def loss_of(x, rng):
    views = [
        lambda: x.view(-1, x.shape[-1]),
        lambda: x.float().view(-1, x.shape[-1]),
        lambda: x.reshape(-1, x.shape[-1]),
    ]
    loss, rows = rng.choice(LOSSES), rng.choice(views)()  # most models do so
    return loss(rows, targets(rows, rng), rng).float()


def run_chain(head, hidden, seed, changes):
    """Applies random operations to `head(hidden)` and returns the loss and the gradients, or the error."""
    rng = random.Random(seed)
    leaf = hidden.clone().requires_grad_()
    state = leaf.tanh()
    found = [head(state)]
    kinds = [VIEWS, VIEWS, COPIES, READS] + ([IN_PLACE, IN_PLACE] if changes else [])
    terms = []
    try:
        for _ in range(rng.randrange(7)):
            x = rng.choice(found)
            found.append(rng.choice(rng.choice(kinds))(x, rng))
            if rng.random() < 0.25:
                terms.append(loss_of(rng.choice(found), rng))
        terms.append(loss_of(rng.choice(found[:2] if rng.random() < 0.6 else found), rng))
        loss, how = sum(terms), rng.random()
        if how < 0.2:
            keeps = any(x.retains_grad for x in found if not x.is_leaf)  # a kept gradient lacks what this one adds
            again = {"retain_graph": True, "create_graph": how < 0.1 and not keeps}
            (inner,) = torch.autograd.grad(loss, rng.choice([leaf, state]), **again)
            loss = loss + (inner * state).sum()
        elif how < 0.25:
            (inner,) = torch.autograd.grad(loss, rng.choice(found), retain_graph=True)
            loss = loss + inner.detach().square().sum()
        elif how < 0.3:
            loss.backward(retain_graph=True)
        elif how > 0.95:
            loss = loss + found[0].float().square().mean()  # after the loss was taken
        loss.backward()
        kept = [x.grad for x in found if not x.is_leaf and x.retains_grad]
        return [loss, leaf.grad, *(one.grad for one in head.parameters()), *kept, *(x.detach() + 0 for x in found)]
    except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError) as error:
        return error


def outcome(seed, dtype, changes, autocast, deferred):
    torch.manual_seed(seed)
    head = nn.Linear(WIDTH, WORDS, bias=seed % 5 < 3, dtype=dtype).requires_grad_(seed % 7 < 5)
    nn.init.normal_(head.weight)
    with (
        logits_deferred(head if deferred else None, CPU, None, True),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
    ):
        return run_chain(head, torch.randn(BATCH, LENGTH, WIDTH).to(dtype), seed, changes)


def difference(plain, deferred, low):
    """Returns a sentence about the first difference; None if there is none."""
    failed = [isinstance(each, Exception) for each in (plain, deferred)]
    if any(failed):
        return None if all(failed) else f"{plain!r} and {deferred!r}"
    for number, (one, other) in enumerate(zip(plain, deferred, strict=True)):
        if one is None and other is None:
            continue
        if one is None or other is None or (one.shape, one.dtype) != (other.shape, other.dtype):
            return f"value {number}: {one} and {other}"
        one, other = one.detach().double(), other.detach().double()
        size = one.nan_to_num().norm() + 1e-3
        near = size * (5e-2 if low else 1e-4)  # sums over chunks are rounded to 8 bits each
        if not torch.equal(one.isnan(), other.isnan()) or (one - other).nan_to_num().norm() > near:
            return f"value {number}: {one} and {other}"
    return None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(20))
def test_random_operations_train_as_on_plain_logits(seed, monkeypatch):
    wrong, losses = [], mock.Mock(wraps=deferred_logits.ChunkedCrossEntropy.apply)
    monkeypatch.setattr(deferred_logits, "CHUNK", 4 * WORDS * 4)
    monkeypatch.setattr(deferred_logits.ChunkedCrossEntropy, "apply", losses)
    for chain in range(seed * CHAINS, (seed + 1) * CHAINS):
        dtype, autocast = [(torch.float32, False), (torch.float32, True), (torch.bfloat16, False)][chain % 3]
        found = [outcome(chain, dtype, chain % 2 == 0, autocast, deferred) for deferred in (False, True)]
        if said := difference(*found, autocast or dtype is torch.bfloat16):
            wrong.append(f"chain {chain}: {said}")
    assert not wrong, f"{len(wrong)}: " + "\n".join(wrong)[:3000]
    assert losses.call_count >= 5
