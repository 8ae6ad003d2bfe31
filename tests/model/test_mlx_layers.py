"""Linear layers and embeddings on MLX's quantized weights."""

import pytest
import torch
from torch import nn

from mps_trainer.model.mlx_layers import BITS, MLXEmbedding, MLXLinear, dequantize, shifts_of, unpack
from tests.mlx_format import dequantized, packed, quantized

ROWS, COLUMNS = 6, 64


def weight(rows=ROWS, columns=COLUMNS):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def parts(bits, group_size=32, dtype=torch.float64, **size):
    found = quantized(weight(**size), bits, group_size)
    return found["weight"].view(torch.uint8), found["scales"].to(dtype), found["biases"].to(dtype), bits


@pytest.mark.parametrize("bits", BITS)
def test_values_are_unpacked(bits):
    values = torch.arange(ROWS * COLUMNS).view(ROWS, COLUMNS) % 2**bits
    found = unpack(packed(values, bits).view(torch.uint8), bits, shifts_of(bits, values.device))
    assert torch.equal(found.long(), values)


def test_lowest_bits_are_first():
    word = torch.tensor([[0x87654321]], dtype=torch.uint32).view(torch.uint8)
    assert unpack(word, 4, shifts_of(4, word.device)).tolist() == [[1, 2, 3, 4, 5, 6, 7, 8]]


@pytest.mark.parametrize("group_size", [32, 64])
@pytest.mark.parametrize("bits", BITS)
def test_weight_is_dequantized(bits, group_size):
    found = dequantize(*parts(bits, group_size), shifts_of(bits, torch.device("cpu")))
    torch.testing.assert_close(found, dequantized(weight(), bits, group_size), atol=1e-12, rtol=0)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("bits", BITS)
def test_linear_layer_equals_dequantized_one(bits, bias):
    plain = nn.Linear(COLUMNS, ROWS, bias=bias, dtype=torch.float64)
    plain.weight.data = dequantized(weight(), bits, 32)
    layer = MLXLinear(*parts(bits), bias=plain.bias.data if bias else None)
    inputs = torch.randn(2, 3, COLUMNS, dtype=torch.float64, requires_grad=True)
    direction = torch.randn(2, 3, ROWS, dtype=torch.float64)
    for each in (plain, layer):
        each.requires_grad_(False)
    expected, given = plain(inputs), layer(inputs)
    torch.testing.assert_close(given, expected, atol=1e-9, rtol=0)
    gradients = [torch.autograd.grad(out, inputs, direction)[0] for out in (expected, given)]
    torch.testing.assert_close(*gradients, atol=1e-9, rtol=0)


def test_backward_pass_keeps_no_weight():
    layer, kept = MLXLinear(*parts(4)), []
    inputs = torch.randn(2, COLUMNS, dtype=torch.float64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda each: each):
        layer(inputs).sum().backward()
    assert not kept
    assert not any(each.requires_grad for each in layer.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_computes_in_16_bits(dtype):
    layer = MLXLinear(*parts(4, dtype=torch.float32))
    inputs = torch.randn(2, COLUMNS, requires_grad=True)
    with torch.autocast("cpu", dtype=dtype):
        out = layer(inputs)
    assert out.dtype is dtype
    out.float().sum().backward()
    assert inputs.grad.dtype is torch.float32
    expected = dequantized(weight(), 4, 32).float().sum(0).expand_as(inputs)
    torch.testing.assert_close(inputs.grad, expected, atol=0.1, rtol=0.02)


@pytest.mark.parametrize("factor", [None, 4.0])
@pytest.mark.parametrize("bits", BITS)
def test_embedding_equals_dequantized_one(bits, factor):
    embedding = MLXEmbedding(*parts(bits), padding_idx=0, factor=factor)
    words = torch.tensor([[1, 5, 0], [2, 2, 3]])
    expected = dequantized(weight(), bits, 32)[words] * (factor or 1)
    torch.testing.assert_close(embedding(words), expected, atol=1e-12, rtol=0)
    assert (embedding.num_embeddings, embedding.embedding_dim) == (ROWS, COLUMNS)


def test_layers_move_and_say_what_they_are():
    layer = MLXLinear(*parts(4)).to(torch.bfloat16)
    assert (layer.packed_weight.dtype, layer.dtype, layer.in_features, layer.out_features) == (
        *(torch.uint8, torch.bfloat16),
        *(COLUMNS, ROWS),
    )
    assert "bits=4, group_size=32" in repr(layer)


def operators(mps, compute):
    mps.reset()
    compute()
    return mps.report().operator_calls, mps.counters()["blocking_reads"]


@pytest.mark.parametrize(("bits", "more"), [(4, 4), (2, 4), (8, 2)])
def test_pass_takes_few_operators_more_than_plain_layer(mps, bits, more):
    inputs = torch.randn(2, COLUMNS, device="mps", requires_grad=True)
    plain = nn.Linear(COLUMNS, ROWS, bias=False, device="mps").requires_grad_(False)
    layer = MLXLinear(*parts(bits, dtype=torch.float32)).to("mps")
    direction = torch.ones(2, ROWS, device="mps")
    layer(inputs), plain(inputs)  # makes what is kept
    found = {}
    for name, each in (("plain", plain), ("quantized", layer)):
        out = each(inputs)
        forward, waits = operators(mps, lambda each=each: each(inputs))
        backward, others = operators(mps, lambda out=out: torch.autograd.grad(out, inputs, direction))
        found[name] = forward, backward
        assert waits == others == 0
    assert all(a - b <= more for a, b in zip(found["quantized"], found["plain"], strict=True)), found
