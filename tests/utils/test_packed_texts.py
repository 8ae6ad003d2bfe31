"""Checks that the host knows where the texts of packed rows begin."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mps_trainer.data.transfer import BatchTransfer
from mps_trainer.utils.packed_texts import PackedTexts, find_texts, texts_of

rows_of_lengths = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=3)


def positions(rows):
    """Returns positions for rows with texts of these lengths; the last text of a shorter row goes on to its end."""
    length = max(map(sum, rows))
    made = [[token for text in row for token in range(text)] for row in rows]
    return torch.tensor([row + [row[-1] + 1 + i for i in range(length - len(row))] for row in made])


@given(rows_of_lengths)
def test_a_text_begins_where_its_positions_begin_anew(rows):
    found = positions(rows)
    texts = find_texts(found)
    for row, starts in zip(found.tolist(), texts.starts, strict=True):
        assert starts == tuple(token for token in range(len(row)) if token == 0 or row[token] != row[token - 1] + 1)
    assert texts.is_packed == any(len(row) > 1 for row in texts.starts)


@given(rows_of_lengths, st.data())
def test_bounds_cover_the_texts_of_all_rows(rows, data):
    found = positions(rows)
    length = found.shape[1]
    start = data.draw(st.integers(0, length - 1))
    end = data.draw(st.integers(start + 1, length))
    number = (found.diff(dim=-1, prepend=found[:, :1] - 1) != 1).cumsum(-1)
    shared = (number[:, start:end, None] == number[:, None]).any(0).any(0).nonzero().flatten().tolist()
    assert find_texts(found).bounds(start, end) == (shared[0], shared[-1] + 1)


@given(rows_of_lengths, st.integers(1, 20))
def test_blocks_cover_a_row_once(rows, most):
    found = find_texts(positions(rows)).blocks(most)
    assert [token for part in found for token in range(part.start, part.stop)] == list(range(max(map(sum, rows))))
    assert all(part.stop - part.start <= most for part in found)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(9, 20))
def test_blocks_of_one_row_begin_with_texts_if_these_fit(row, most):
    texts = find_texts(positions([row]))
    assert {part.start for part in texts.blocks(most)} <= set(texts.starts[0])


@pytest.mark.parametrize(
    "other",
    [None, [[0, 1]], torch.zeros(3, dtype=torch.int64), torch.zeros(1, 2), torch.zeros(3, 1, 2, dtype=torch.int64)],
    ids=["none", "list", "one dimension", "numbers with a point", "three dimensions"],
)
def test_other_positions_have_no_texts(other):
    assert find_texts(other) is None


@pytest.mark.every_device
def test_a_batch_on_the_device_knows_its_texts(device):
    given_ids = torch.tensor([[0, 1, 0, 1, 2]])
    batch = BatchTransfer(torch.device(device))({"input_ids": torch.ones(1, 5), "position_ids": given_ids})
    assert texts_of(batch["position_ids"]) == PackedTexts(((0, 2),), 5)
    assert texts_of(batch["input_ids"]) is None
    batch["position_ids"] += 1
    assert texts_of(batch["position_ids"]) is None  # it may have other texts by now
