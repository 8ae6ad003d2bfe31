"""Attention in chunks: equal to torch's for every kind of mask, in linear memory, and the same numbers again."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from transformers import masking_utils

from mps_trainer.devices.large_products import product
from mps_trainer.model.attention_masks import ChunkedMask, GivenMask, Reach, reach_of
from mps_trainer.model.chunked_attention import chunked_attention
from tests.model.conftest import Results

CAUSAL = masking_utils.causal_mask_function
TEXTS = torch.tensor([[0] * 3 + [1] * 5 + [2] * 4, [0] * 7 + [1] * 5])
POSITIONS = torch.tensor([[*range(3), *range(5), *range(4)], [*range(7), *range(5)]])
PADDING = torch.tensor([[False] * 4 + [True] * 8, [True] * 9 + [False] * 3])
LENGTH = 12

PADDED = masking_utils.padding_mask_function(PADDING)
BIDIRECTIONAL = masking_utils.bidirectional_mask_function
IMAGES = masking_utils.blockwise_overlay(torch.where(TEXTS == 1, 1, -1))

# Masks, and what of them is known not to be computed. transformers has no public way to ask for it: a change there
# shows here, and would cost time alone.
MASKS = {
    "causal": (CAUSAL, Reach(0)),
    "bidirectional": (BIDIRECTIONAL, Reach()),
    "window": (masking_utils.sliding_window_causal_mask_function(4), Reach(0, 3)),
    "window of both sides": (masking_utils.sliding_window_bidirectional_mask_function(3), Reach(3, 3)),
    "chunks": (masking_utils.chunked_causal_mask_function(5, torch.tensor([0, 2])), Reach(0, 4, False)),
    "padding": (masking_utils.and_masks(BIDIRECTIONAL, PADDED), Reach(is_plain=False)),
    "causal with padding": (masking_utils.and_masks(CAUSAL, PADDED), Reach(0, None, False)),
    "images": (masking_utils.or_masks(CAUSAL, IMAGES), Reach(is_plain=False)),
    "own": (lambda batch, head, query, key: key <= query, Reach(is_plain=False)),
}
if hasattr(masking_utils, "packed_sequence_compatibility_function"):  # newer than the last release for Python 3.10
    SHORT = masking_utils.sliding_window_causal_mask_function(3)
    packed = masking_utils.packed_sequence_compatibility_function
    MASKS["packed"] = packed(CAUSAL, POSITIONS, TEXTS), Reach(0, None, False)
    MASKS["packed in a window"] = packed(SHORT, POSITIONS, TEXTS), Reach(0, 2, False)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr("mps_trainer.model.chunked_attention.ROWS", 5)
    monkeypatch.setattr("mps_trainer.model.chunked_attention.BLOCK", 5 * LENGTH * 2 * 2 * 8)


def whole(visible, batch, queries, keys):
    """Returns transformers' mask of tokens x tokens."""
    arange = torch.arange
    mask = visible(
        arange(batch)[:, None, None, None],
        torch.zeros(1, 1, 1, 1, dtype=torch.int64),
        arange(queries)[None, None, :, None],
        arange(keys)[None, None, None],
    )
    return mask.expand(batch, 1, queries, keys)


def chunked(visible, batch, queries, keys):
    return ChunkedMask(visible, reach_of(visible), batch, queries, keys, torch.device("cpu"))


def tensors(batch=2, heads=4, key_heads=2, queries=LENGTH, keys=LENGTH, size=3, dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    shapes = (heads, queries), (key_heads, keys), (key_heads, keys)
    return [torch.randn(batch, *shape, size, dtype=dtype, requires_grad=True) for shape in shapes]


def plain(query, key, value, mask, scale):
    with sdpa_kernel(SDPBackend.MATH):
        out = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=True)
    return out.transpose(1, 2)


def gradients(out, inputs):
    torch.manual_seed(5)
    return torch.autograd.grad(out, inputs, torch.randn(out.shape).to(out.dtype))


@pytest.mark.parametrize("name", MASKS)
def test_every_mask_equals_plain_attention(name):
    inputs, (visible, reach) = tensors(), MASKS[name]
    assert reach_of(visible) == reach
    seen = whole(visible, 2, LENGTH, LENGTH)
    counts = seen.any(-1)[:, 0, :, None, None]  # the result of a query without a key is not defined
    found = chunked_attention(*inputs, chunked(visible, 2, LENGTH, LENGTH), 0.6) * counts
    expected = torch.where(counts, plain(*inputs, seen, 0.6), 0)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(found, inputs), gradients(expected, inputs))


def test_hidden_blocks_are_not_computed(monkeypatch):
    sizes = []
    product = torch.bmm
    monkeypatch.setattr("mps_trainer.model.chunked_attention.BLOCK", 2**20)
    monkeypatch.setattr(torch, "bmm", lambda one, other: sizes.append(other.shape[-1]) or product(one, other))
    inputs = [each.detach() for each in tensors(heads=2, queries=20, keys=20)]
    for visible, keys in ((CAUSAL, [5, 10, 15, 20]), (MASKS["window"][0], [5, 8, 8, 8])):
        sizes.clear()
        chunked_attention(*inputs, chunked(visible, 2, 20, 20), 1.0)
        assert sizes == keys


drawn = {
    "heads": st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 1)]),
    "lengths": st.tuples(st.integers(1, 40), st.integers(1, 40)),
    "batch": st.integers(1, 3),
    "size": st.sampled_from([1, 4, 7]),
    "rows": st.integers(1, 50),
    "block": st.sampled_from([1, 2000, 10**6]),
    "window": st.none() | st.integers(1, 50),
    "is_causal": st.booleans(),
    "padding": st.none() | st.integers(0, 2**16),
    "dtype": st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
}


@settings(max_examples=150, deadline=None)
@given(**drawn)
def test_any_shape_and_mask_equals_plain_attention(
    heads, lengths, batch, size, rows, block, window, is_causal, padding, dtype
):
    queries, keys = lengths if not is_causal else (lengths[0], lengths[0])
    parts = [CAUSAL if is_causal else BIDIRECTIONAL]
    if window is not None:
        parts.append(masking_utils.sliding_window_bidirectional_overlay(window))
    if padding is not None:
        seen = torch.rand(batch, keys, generator=torch.Generator().manual_seed(padding)) < 0.7
        parts.append(masking_utils.padding_mask_function(seen))
    visible = masking_utils.and_masks(*parts)
    inputs = tensors(batch, *heads, queries, keys, size, dtype)
    seen = whole(visible, batch, queries, keys)
    counts = seen.any(-1)[:, 0, :, None, None]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mps_trainer.model.chunked_attention.ROWS", rows)
        patch.setattr("mps_trainer.model.chunked_attention.BLOCK", block)
        found = chunked_attention(*inputs, chunked(visible, batch, queries, keys), size**-0.5) * counts
        found_gradients = gradients(found, inputs)

    def reference(kind):
        like = [each.detach().to(kind).requires_grad_() for each in inputs]
        out = torch.where(counts, plain(*like, seen, size**-0.5), 0)
        return [each.double() for each in (out, *gradients(out.to(dtype), like))]

    exact = reference(torch.float64)
    for ours, right, torchs in zip((found, *found_gradients), exact, reference(dtype), strict=True):
        wrong = (ours.double() - right).abs().max()
        if dtype in (torch.float32, torch.float64):
            assert wrong <= 1e-5 * (1 + right.abs().max())
        else:  # one unit in the last place more: where torch happens to round right, its error is 0
            assert wrong <= 2 * (torchs - right).abs().max() + torch.finfo(dtype).eps * right.abs().max()


def test_a_mask_that_the_model_made_is_taken_block_by_block():
    inputs, seen = tensors(), whole(MASKS["causal with padding"][0], 2, LENGTH, LENGTH)
    assert not seen[0, 0, 0].any()  # a query without a key
    bias = torch.where(seen, torch.randn(2, 1, LENGTH, LENGTH, dtype=torch.float64), -torch.inf)
    row = torch.where(PADDING, 0.0, -torch.inf)[:, None, None].expand(2, 1, LENGTH, LENGTH).double()
    for mask in (seen, bias, row):
        found, expected = chunked_attention(*inputs, GivenMask(mask), 0.6), plain(*inputs, mask, 0.6)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(gradients(found, inputs), gradients(expected, inputs))


def test_dropout_drops_its_share_and_draws_the_same_again():
    inputs, mask = tensors(heads=8, queries=60, keys=60), chunked(BIDIRECTIONAL, 2, 60, 60)

    def dropped(*each):
        torch.manual_seed(3)
        return chunked_attention(*each, mask, 0.6, 0.3)

    ones = [*inputs[:2], torch.ones_like(inputs[2])]
    kept = dropped(*ones)
    assert kept.mean().item() == pytest.approx(1, abs=0.03)
    assert kept.std() > 0.02
    small = tensors()
    mask = chunked(CAUSAL, 2, LENGTH, LENGTH)
    assert torch.autograd.gradcheck(dropped, small, fast_mode=True)  # it calls `dropped` again and again
    assert not torch.equal(chunked_attention(*small, mask, 0.6, 0.3), chunked_attention(*small, mask, 0.6, 0.3))


def test_memory_grows_with_the_length_alone():
    sizes = []
    for length in (64, 128, 256):
        inputs = tensors(1, 2, 2, length, length, 4)
        with Results() as results:
            gradients(chunked_attention(*inputs, chunked(CAUSAL, 1, length, length), 0.5), inputs)
        sizes.append(max(shape.numel() for shape in results.shapes))
    assert all(later <= 2 * earlier for earlier, later in itertools.pairwise(sizes))


@pytest.mark.parametrize("most", [None, 1, 3, 4, 10, 11])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_product_in_parts_is_the_product(most, batch):
    torch.manual_seed(0)
    left, right = torch.randn(*batch, 5, 10), torch.randn(*batch, 10, 7)
    torch.testing.assert_close(product(left, right, most), left @ right)
