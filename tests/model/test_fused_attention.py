"""Attention in chunks takes torch's fused kernel for the forward pass on mps, where it has one for the case."""

import pytest
import torch
from transformers import masking_utils

import mps_trainer.model.chunked_attention as chunked_attention_module
from mps_trainer.devices import fused_attention
from mps_trainer.model.attention_masks import ChunkedMask, GivenMask, reach_of
from mps_trainer.model.chunked_attention import chunked_attention
from mps_trainer.utils.packed_texts import PackedTexts
from tests.model.test_chunked_attention import packed
from tests.simulator.test_training import FUSED_ATTENTION

CAUSAL = masking_utils.causal_mask_function
BIDIRECTIONAL = masking_utils.bidirectional_mask_function
WINDOW = masking_utils.sliding_window_causal_mask_function
BOTH_SIDES = masking_utils.sliding_window_bidirectional_mask_function
LENGTH, SIZE = 40, 32
NEAR = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}  # two units in the last place


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr("mps_trainer.model.chunked_attention.ROWS", 16)


@pytest.fixture(autouse=True)
def has_kernel():
    """Reads torch's version and the variable of each test anew."""
    fused_attention._has_kernel.cache_clear()
    yield
    fused_attention._has_kernel.cache_clear()


@pytest.fixture
def torch_of_today(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.15.0")


def plain(visible, device="mps", queries=LENGTH, keys=LENGTH, **settings):
    return ChunkedMask(visible, reach_of(visible), 2, queries, keys, torch.device(device), **settings)


def inputs(dtype=torch.float32, size=SIZE, value_size=None, queries=LENGTH, keys=LENGTH, batch=2, device="mps"):
    torch.manual_seed(0)
    shapes = (4, queries, size), (2, keys, size), (2, keys, value_size or size)
    return [torch.randn(batch, *shape, dtype=dtype).to(device).requires_grad_() for shape in shapes]


def attend(given, mask, **settings):
    out = chunked_attention(*given, mask, 0.2, **settings)
    torch.manual_seed(5)
    gradients = torch.autograd.grad(out, given, torch.randn(out.shape).to(out))
    return [each.detach().cpu() for each in (out, *gradients)]


def is_fused(mps, given, mask, **settings):
    mps.reset()
    chunked_attention(*given, mask, 0.2, **settings)
    names = {operator.name.removeprefix("aten::") for operator in mps.report().operators}
    assert (FUSED_ATTENTION in names) is not ("bmm" in names)
    return FUSED_ATTENTION in names


TAKEN = {
    "causal": CAUSAL,
    "all keys": BIDIRECTIONAL,
    "window of all tokens": WINDOW(LENGTH),
    "both sides": BOTH_SIDES(LENGTH),
}


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("name", TAKEN)
def test_results_are_those_of_blocks(mps, torch_of_today, dtype, name):
    given, near = inputs(dtype), NEAR[dtype]
    assert is_fused(mps, given, plain(TAKEN[name]))
    found = attend(given, plain(TAKEN[name]))
    expected = attend(inputs(dtype, device="cpu"), plain(TAKEN[name], "cpu"))
    torch.testing.assert_close(found[0], expected[0], rtol=near, atol=near)
    assert found[0].is_contiguous()
    # the backward pass computes blocks in either case
    torch.testing.assert_close(found[1:], expected[1:], rtol=1e-5, atol=1e-5)


def no_padding():
    return masking_utils.padding_mask_function(torch.ones(2, LENGTH, dtype=torch.bool, device="mps"))


NOT_TAKEN = {
    "a window": (lambda: (inputs(), plain(WINDOW(LENGTH - 1))), {}),
    "a window of both sides": (lambda: (inputs(), plain(BOTH_SIDES(LENGTH - 2))), {}),
    "padding": (lambda: (inputs(), plain(masking_utils.and_masks(CAUSAL, no_padding()))), {}),
    "a given mask": (lambda: (inputs(), GivenMask(torch.ones(2, 1, LENGTH, LENGTH, device="mps").bool())), {}),
    "dropout": (lambda: (inputs(), plain(CAUSAL)), {"dropout": 0.1}),
    "other queries than keys": (lambda: (inputs(queries=20), plain(CAUSAL, queries=20)), {}),
    "queries after the keys": (lambda: (inputs(), plain(CAUSAL, q_offset=3)), {}),
    "no kernel for the size": (lambda: (inputs(size=40), plain(CAUSAL)), {}),
    "values of another size": (lambda: (inputs(value_size=64), plain(CAUSAL)), {}),
    "few queries": (lambda: (inputs(queries=8, keys=8), plain(CAUSAL, queries=8, keys=8)), {}),
    "two formats": (lambda: ([inputs()[0], *inputs(torch.bfloat16)[1:]], plain(CAUSAL)), {}),
}


@pytest.mark.parametrize("name", NOT_TAKEN)
def test_blocks_compute_other_cases(mps, torch_of_today, name):
    make, settings = NOT_TAKEN[name]
    assert not is_fused(mps, *make(), **settings)


@pytest.mark.parametrize(
    ("version", "variable", "fused"),
    [("2.15.0", None, True), ("2.16.0.dev1", "0", True), ("2.14.1", None, False), ("2.15.0", "1", False)],
)
def test_torch_must_have_the_kernel(mps, monkeypatch, version, variable, fused):
    monkeypatch.setattr(torch, "__version__", version)
    if variable is not None:
        monkeypatch.setenv("PYTORCH_MPS_DISABLE_PREFILL_ATTENTION", variable)
    assert is_fused(mps, inputs(), plain(CAUSAL)) is fused


def packed_row(lengths, rows=1, device="mps"):
    """Returns the mask of rows of packed texts; only its `visible`, which no block asks here, is on the CPU."""
    _, visible, length = packed(CAUSAL, [lengths] * rows)
    starts = tuple(sum(lengths[:number]) for number in range(len(lengths)))
    where = torch.device(device)
    return ChunkedMask(
        visible, reach_of(visible), rows, length, length, where, texts=PackedTexts((starts,) * rows, length)
    )


def test_each_packed_text_is_fused(mps, torch_of_today):
    shape = {"batch": 1, "queries": 59, "keys": 59}
    mps.reset()
    out = chunked_attention(*inputs(**shape), packed_row([20, 9, 30]), 0.2)
    calls = {operator.name.removeprefix("aten::"): operator.calls for operator in mps.report().operators}
    assert calls[FUSED_ATTENTION] == 3
    assert "bmm" not in calls
    expected = chunked_attention(*inputs(**shape, device="cpu"), packed_row([20, 9, 30], device="cpu"), 0.2)
    torch.testing.assert_close(out.detach().cpu(), expected.detach())


@pytest.mark.parametrize(
    ("lengths", "rows"),
    [
        ([20, 8, 31], 1),  # a text has too few queries for the kernel
        ([20, 39], 2),  # rows have texts of their own
        ([9] * 15, 1),  # blocks of several texts take fewer operators
    ],
)
def test_other_packed_rows_stay_in_blocks(mps, torch_of_today, monkeypatch, lengths, rows):
    monkeypatch.setattr("mps_trainer.model.chunked_attention.ROWS", 45)
    length = sum(lengths)
    given = inputs(batch=rows, queries=length, keys=length)
    out = given[0].new_empty(rows, length, 4, SIZE)
    mask = packed_row(lengths, rows)
    assert not chunked_attention_module._attend_fused(out, *given, mask, 0.2)
    assert chunked_attention_module._attend_fused(out, *given, plain(CAUSAL, queries=length, keys=length), 0.2)
