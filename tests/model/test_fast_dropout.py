"""Dropout on the CPU with four decisions from each random number: the same distribution, exact in expectation."""

import math

import pytest
import torch
from torch.nn import functional

from mps_trainer.model.patches.fast_dropout import attention, draw, dropout, fast_dropout
from tests.conftest import logged

N = 2**22
SIGMAS = 5  # the chance that a sound generator fails one of these tests is below one in a million


@pytest.fixture(scope="module")
def mask():
    torch.manual_seed(7)
    drawn, _ = draw(torch.Size([N]), 0.1, torch.float64)
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    return drawn


def within(value, expected, deviation):
    return abs(value - expected) < SIGMAS * deviation


@pytest.mark.parametrize("distance", [1, 2, 3, 4, 5, 8, 64, 1024])
def test_neighbours_are_independent(mask, distance):
    centred = (mask - mask.mean()) / mask.std()
    assert within((centred[distance:] * centred[:-distance]).mean().item(), 0, 1 / math.sqrt(N - distance))


@pytest.mark.parametrize("p", [1e-9, 1e-4, 0.1, 0.3, 0.5, 0.9, 1 - 1e-9])
def test_the_expectation_is_exact(p):
    _, scale = draw(torch.Size([1]), p, torch.float64)
    kept_chance = 1 / scale
    assert abs((1 - kept_chance) - p) < (1e-5 if p < 0.99 else 2e-5)
    torch.manual_seed(0)
    ones = dropout(torch.ones(N, dtype=torch.float64), p)
    assert within(ones.mean().item(), 1, math.sqrt(max(1 - kept_chance, 0) * scale / N) + 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_formats_of_16_bits_are_scaled_by_the_exact_number(dtype):
    torch.manual_seed(1)
    values = (1 + torch.rand(N)).to(dtype)
    out = dropout(values, 0.1)
    assert out.dtype is dtype
    survivors = out != 0
    ratio = out[survivors].double().sum() / values[survivors].double().sum()
    # What is left is the rounding of the results, to 128 values in bfloat16. torch's own mask there is off by 1.6e-3.
    assert abs(ratio.item() / draw(values.shape, 0.1, dtype)[1] - 1) < 2e-4


@pytest.mark.parametrize("shape", [(), (1,), (3,), (4,), (5,), (7, 9), (2, 0, 3)])
def test_any_shape(shape):
    assert dropout(torch.ones(shape), 0.5).shape == torch.Size(shape)


def test_the_seed_decides_whatever_the_number_of_threads():
    threads, masks = torch.get_num_threads(), []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            torch.manual_seed(3)
            masks.append(draw(torch.Size([100_003]), 0.3, torch.float32)[0])
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*masks)
    assert not torch.equal(masks[0], draw(torch.Size([100_003]), 0.3, torch.float32)[0])


def test_gradients_are_those_of_the_mask():
    torch.manual_seed(0)
    values = torch.randn(50, 40, requires_grad=True)
    out = dropout(values, 0.2)
    out.sum().backward()
    torch.testing.assert_close(values.grad, torch.where(out == 0, 0.0, draw(out.shape, 0.2, out.dtype)[1]))


@pytest.mark.parametrize(
    ("shapes", "mask"),
    [
        ([(6, 8), (5, 8), (5, 3)], None),  # no batch, other lengths, other width
        ([(3, 6, 8), (3, 5, 8), (3, 5, 8)], torch.arange(30).reshape(6, 5) % 3 > 0),
        ([(3, 2, 6, 8), (3, 2, 5, 8), (3, 2, 5, 8)], torch.arange(90).reshape(3, 1, 6, 5) % 4 > 0),
        ([(3, 2, 6, 8), (3, 2, 5, 8), (3, 2, 5, 8)], torch.arange(18).reshape(3, 1, 6, 1) % 4 > 0),
        ([(2, 6, 8), (2, 5, 8), (2, 5, 8)], torch.full((6, 5), -math.inf).triu(2)),
        ([(2, 6, 8), (2, 5, 8), (2, 5, 8)], torch.full((6, 5), -math.inf)),
        ([(2, 6, 8), (2, 5, 8), (2, 5, 8)], torch.arange(6)[:, None].expand(6, 5) != 2),  # a query that sees nothing
        ([(2, 6, 8), (2, 5, 8), (2, 5, 8)], "causal"),
        ([(2, 4, 6, 8), (2, 2, 6, 8), (2, 2, 6, 8)], "grouped"),
    ],
)
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention_equals_torch_where_nothing_is_dropped(shapes, mask, scale):
    torch.manual_seed(0)
    settings = {"is_causal": mask == "causal", "enable_gqa": mask == "grouped", "scale": scale}
    mask = None if isinstance(mask, str) else mask
    found = [torch.randn(shape).requires_grad_() for shape in shapes]
    expected = [each.detach().clone().requires_grad_() for each in found]
    with fast_dropout(True):
        ours = functional.scaled_dot_product_attention(*found, mask, 1e-9, **settings)
    torchs = functional.scaled_dot_product_attention(*expected, mask, **settings)
    torch.testing.assert_close(ours, torchs)
    ours.square().sum().backward()
    torchs.square().sum().backward()
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_a_query_that_sees_nothing_is_0_in_float16():
    query = torch.full((1, 2, 4), 5.0, dtype=torch.float16)  # scores of -50, and torch.finfo is -65,504
    found = attention(query, -query, query, torch.zeros(2, 2, dtype=torch.bool), 1e-9)
    assert torch.equal(found, torch.zeros_like(found))


def test_a_module_of_torchs_own_takes_it():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
    values = torch.randn(2, 5, 8)
    with fast_dropout(True):
        first, second = layer(values), layer(values)
        padded = layer(values, src_key_padding_mask=torch.arange(5).expand(2, 5) > 3)
    assert not torch.equal(first, second)
    assert padded.isfinite().all()


def test_attention_with_dropout_is_exact_in_expectation():
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 1, 4, 8, dtype=torch.float64).expand(20_000, 1, 4, 8) for _ in range(3))
    draws = attention(query, key, value, None, 0.3)
    expected = functional.scaled_dot_product_attention(query[:1], key[:1], value[:1])[0]
    assert ((draws.mean(0) - expected).abs() < SIGMAS * draws.std(0) / math.sqrt(20_000)).all()
    assert (draws.std(0) > 0).all()


def test_what_it_does_not_take_is_torchs():
    ones, query = torch.ones(1000), torch.randn(1, 2, 4, 8)
    plain = functional.dropout, functional.scaled_dot_product_attention
    with fast_dropout(False):
        assert (functional.dropout, functional.scaled_dot_product_attention) == plain
    with fast_dropout(True):
        assert torch.equal(functional.dropout(ones, 0.0), ones)
        assert torch.equal(functional.dropout(ones, 1.0), torch.zeros(1000))
        assert torch.equal(functional.dropout(ones, 0.5, training=False), ones)
        changed = ones.clone()
        assert functional.dropout(changed, 0.5, inplace=True) is changed
        assert set(functional.dropout(ones.to("meta"), 0.5).shape) == {1000}
        assert functional.dropout(torch.nested.nested_tensor([ones, ones[:3]]), 0.5).is_nested
        for mask in (torch.ones(4, 4, dtype=torch.int64).tril(), torch.zeros(4, 4, dtype=torch.float64)):
            with pytest.raises(RuntimeError, match="dtype"):
                functional.scaled_dot_product_attention(query, query, query, mask, 0.1)
    with pytest.raises(ValueError, match="dropout probability"), fast_dropout(True):
        functional.dropout(ones, 1.5)
    assert (functional.dropout, functional.scaled_dot_product_attention) == plain


def test_a_run_draws_as_torch_does_unless_told_otherwise(trained):
    def losses(**settings):
        torch.manual_seed(0)
        trainer = trained(max_steps=4, seed=5, **settings)
        assert functional.dropout.__module__ == "torch.nn.functional"
        return logged(trainer, "loss")

    fast = losses(fast_dropout=True)
    assert losses(fast_dropout=True) == fast != losses()


def test_autocast_takes_it():
    with fast_dropout(True), torch.autocast("cpu", torch.bfloat16):
        values = torch.randn(2, 3, 4, 8)
        product = torch.nn.functional.linear(values, torch.randn(8, 8, requires_grad=True))
        out = functional.scaled_dot_product_attention(product, product, product, dropout_p=0.1)
        out = functional.dropout(out, 0.1)
    assert (out.dtype, out.shape) == (torch.bfloat16, values.shape)
    out.float().sum().backward()
