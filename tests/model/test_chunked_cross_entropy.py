"""Loss and gradients are those of the plain cross entropy, whatever the chunks."""

import pytest
import torch
from torch.nn.functional import cross_entropy, linear

from mps_trainer.model import chunked_cross_entropy as module
from mps_trainer.model.chunked_cross_entropy import chunked_cross_entropy, rows_of_chunk

ROWS, WIDTH, WORDS = 37, 12, 50


@pytest.fixture(params=[1, 8, 1000], ids="{} rows at a time".format)
def chunks(request, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 4 * WORDS * request.param)


def operands(dtype=torch.float64, bias=True):
    draw = torch.Generator().manual_seed(0)
    made = [torch.randn(ROWS, WIDTH, generator=draw), torch.randn(WORDS, WIDTH, generator=draw)]
    made += [torch.randn(WORDS, generator=draw)] if bias else []
    target = torch.randint(0, WORDS, (ROWS,), generator=draw)
    target[::5] = -100
    return [one.to(dtype).requires_grad_() for one in made], target


def loss_and_grads(loss_of, inputs):
    loss = loss_of(*inputs)
    (3 * loss).backward()
    return [loss, *(one.grad for one in inputs)]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_it_is_the_plain_loss(chunks, reduction, bias):
    def plain(hidden, weight, bias=None):
        return cross_entropy(linear(hidden, weight, bias), target, reduction=reduction)

    def chunked(hidden, weight, bias=None):
        return chunked_cross_entropy(hidden, weight, bias, target, reduction=reduction, most_words=7)

    inputs, target = operands(torch.float32, bias)
    expected = loss_and_grads(plain, inputs)
    again, _ = operands(torch.float32, bias)
    for found, wanted in zip(loss_and_grads(chunked, again), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_half_precision_has_a_loss_in_float32(chunks):
    inputs, target = operands(torch.bfloat16)
    expected = loss_and_grads(lambda *given: cross_entropy(linear(*given).float(), target), inputs)
    again, _ = operands(torch.bfloat16)
    loss, *grads = loss_and_grads(lambda *given: chunked_cross_entropy(*given, target), again)
    assert loss.dtype is torch.float32
    assert loss.item() == pytest.approx(expected[0].item(), abs=1e-5)
    for found, wanted in zip(grads, expected[1:], strict=True):
        assert found.dtype is torch.bfloat16
        # sums over the chunks are rounded to 8 bits each
        torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.05)


def test_a_frozen_weight_has_no_gradient(chunks):
    (hidden, weight, bias), target = operands(torch.float32)
    weight.requires_grad_(False)
    bias.requires_grad_(False)
    chunked_cross_entropy(hidden, weight, bias, target).backward()
    assert hidden.grad is not None
    assert weight.grad is bias.grad is None


def test_targets_that_are_all_ignored_are_the_plain_nan():
    (hidden, weight, bias), target = operands(torch.float32)
    assert chunked_cross_entropy(hidden, weight, bias, torch.full_like(target, -100)).isnan()
    assert chunked_cross_entropy(hidden, weight, bias, torch.full_like(target, -100), reduction="sum") == 0


def test_a_second_backward_is_refused():
    inputs, target = operands(torch.float32)
    loss = chunked_cross_entropy(*inputs, target)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="chunked_cross_entropy=False"):
        loss.backward()


def test_no_more_than_a_chunk_of_logits_exists(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 4 * WORDS * 8)
    largest = []

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            is_weight = isinstance(result, torch.Tensor) and result.shape == (WIDTH, WORDS)
            if isinstance(result, torch.Tensor) and result.shape[-1:] == (WORDS,) and not is_weight:
                largest.append(len(result))
            return result

    (hidden, weight, _), target = operands(torch.float32)
    with Sizes():
        chunked_cross_entropy(hidden, weight, None, target).backward()
    assert max(largest) == 8


@pytest.mark.parametrize(("rows", "words", "chunk"), [(2048, 65536, 256), (100, 65536, 100), (2048, 2**26, 1)])
def test_rows_of_a_chunk(rows, words, chunk):
    assert rows_of_chunk(rows, words) == chunk
