"""Loss and gradients are those of the plain cross entropy, whatever the chunks."""

import pytest
import torch
from torch.nn.functional import cross_entropy, linear

from mps_trainer.model.patches import deferred_logits as module
from mps_trainer.model.patches.deferred_logits import Head
from tests.model.conftest import Results

ROWS, WIDTH, WORDS = 37, 12, 50


def chunked_cross_entropy(hidden, weight, bias, target, **settings):
    settings = {"ignore_index": -100, "reduction": "mean", **settings}
    return module.ChunkedCrossEntropy.apply(hidden, weight, bias, None, Head(weight, bias), target, settings)


@pytest.fixture(params=[1, 8, 1000], ids="{} rows at a time".format)
def chunks(request, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 4 * WORDS * request.param)


def operands():
    draw = torch.Generator().manual_seed(0)
    made = [torch.randn(*size, generator=draw) for size in ((ROWS, WIDTH), (WORDS, WIDTH), (WORDS,))]
    target = torch.randint(0, WORDS, (ROWS,), generator=draw)
    target[::5] = -100
    return [one.requires_grad_() for one in made], target


def loss_and_grads(loss_of, inputs):
    loss = loss_of(*inputs)
    (3 * loss).backward()
    return [loss, *(one.grad for one in inputs)]


def test_no_more_than_a_chunk_of_logits_exists(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 4 * WORDS * 8)
    (hidden, weight, _), target = operands()
    with Results() as results:
        chunked_cross_entropy(hidden, weight, None, target).backward()
    rows = {shape[0] for shape in results.shapes if shape[-1:] == (WORDS,)}
    assert max(rows - {WIDTH}) == 8  # the weight has WIDTH rows


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_without_a_target_that_counts_the_gradients_are_0(chunks, reduction):
    inputs, target = operands()
    target[:] = -100
    loss, *found = loss_and_grads(lambda *given: chunked_cross_entropy(*given, target, reduction=reduction), inputs)
    expected = cross_entropy(linear(*inputs), target, reduction=reduction)
    assert torch.equal(loss.isnan(), expected.isnan())
    assert all(torch.equal(grad, torch.zeros_like(grad)) for grad in found)


def test_what_rows_that_do_not_count_hold_does_not_matter(chunks):
    inputs, target = operands()
    with torch.no_grad():
        inputs[0][::5] = float("nan")
        inputs[2][0] = -float("inf")
    loss, *grads = loss_and_grads(lambda *given: chunked_cross_entropy(*given, target), inputs)
    expected = cross_entropy(linear(*inputs)[target != -100], target[target != -100])
    torch.testing.assert_close(loss, expected)
    assert all(grad.isfinite().all() for grad in grads)


def test_small_gradients_of_a_mean_survive_in_float16():
    """A scaler multiplies the loss, so that the gradients of 4,096 rows are not too small for float16."""
    draw = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(4096, 8, generator=draw), 0.1 * torch.randn(512, 8, generator=draw)
    target = torch.zeros(4096, dtype=torch.long)
    found = []
    for dtype in (torch.float64, torch.float16):
        inputs = [one.to(dtype).requires_grad_() for one in (hidden, weight)]
        if dtype is torch.float16:
            loss = chunked_cross_entropy(*inputs, None, target)
        else:
            loss = cross_entropy(linear(*inputs), target)
        (65536 * loss).backward()
        found.append([one.grad.double() for one in inputs])
    for exact, half in zip(*found, strict=True):
        assert (half - exact).norm() / exact.norm() < 2e-3
        assert half[1:].norm().item() == pytest.approx(exact[1:].norm().item(), rel=1e-2)


def test_the_gradient_of_many_rows_with_one_word_does_not_overflow_in_float16():
    """No scaler could mend it: the sum over rows comes before its scale."""
    hidden, weight = torch.full((16_384, 4), 6.0), torch.zeros(64, 4)
    inputs = [one.half().requires_grad_() for one in (hidden, weight)] + [torch.zeros(64).half().requires_grad_()]
    chunked_cross_entropy(*inputs, torch.zeros(16_384, dtype=torch.long)).backward()
    torch.testing.assert_close(inputs[1].grad[0], torch.full((4,), -6.0 * 63 / 64).half(), rtol=1e-3, atol=0)
    assert all(one.grad.isfinite().all() for one in inputs)
