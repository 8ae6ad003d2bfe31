"""Values of fake tensors that follow from the batch."""

import numpy as np
import pytest
import torch

from mps_trainer.tools.fit.fake_tensors import fake_mode, fake_of
from mps_trainer.tools.fit.known_values import _MOST, _MOST_FRACTIONS, HostReads, fake_with_values, values_of
from mps_trainer.tools.fit.memory_tracker import MemoryTracker

IDS = torch.tensor([[7, 7, 1, 2], [7, 3, 1, 0]])
WEIGHTS = torch.ones(8, 3)


@pytest.fixture(autouse=True)
def tracker():
    with fake_mode(), HostReads(), MemoryTracker() as tracker:
        yield tracker


def test_what_the_batch_decides_is_exact():
    ids, hidden = fake_with_values(IDS), fake_of(WEIGHTS)[fake_with_values(IDS)]
    mask = ids == 7
    assert mask.sum().item() == 3
    assert hidden[mask].shape == (3, 3)
    assert hidden[mask[:, :, None].expand_as(hidden)].shape == (9,)
    assert mask.nonzero().shape == (3, 2)
    assert ids.masked_select(~mask).tolist() == [1, 2, 3, 1, 0]
    assert ids.unique().tolist() == [0, 1, 2, 3, 7]
    assert not (ids > 0).all()
    assert torch.arange(3, device=ids.device).repeat_interleave(mask.sum(0)[:3]).tolist() == [0, 0, 1]


def test_changes_in_place_are_followed_and_those_that_are_not_known_end_it():
    ids, weights = fake_with_values(IDS.clone()), fake_of(WEIGHTS)
    row = ids[1]
    row.add_(1)
    assert ids.tolist() == [[7, 7, 1, 2], [8, 4, 2, 1]]
    row[:2] = weights.argmax(0)[:2]
    assert ids.sum().item() == 1  # any tensor with unknown values has ones
    assert ids.tolist() == [[1] * 4] * 2
    assert fake_with_values(IDS).sum().item() == 28


def test_large_random_and_uninitialized_tensors_have_no_known_values():
    many = fake_with_values(torch.zeros(_MOST + 1, dtype=torch.long))
    assert many.sum().item() == 1
    allowed = torch.ones(_MOST_FRACTIONS + 1, dtype=torch.bool, device=many.device)
    assert values_of(allowed) is not None
    assert values_of(allowed.float()) is None
    assert torch.rand(4, device=many.device).sum().item() == 1.0
    dropped = torch.zeros(4, device=many.device)
    dropped.bernoulli_(0.5)
    assert dropped.sum().item() == 1.0
    rows = fake_with_values(IDS)
    for empty in (rows.new_empty(4), torch.empty(4, device=rows.device), torch.empty_like(rows)):
        assert values_of(empty) is None


def test_numpy_and_format_strings_read_known_values_and_ones_for_others():
    assert f"{fake_with_values(IDS).sum():.1f} {fake_of(WEIGHTS).sum():.1f}" == "28.0 1.0"
    assert np.array_equal(np.asarray(fake_with_values(IDS)), IDS.numpy())
    assert np.array_equal(fake_of(WEIGHTS).numpy(), np.ones((8, 3), dtype=np.float32))


def test_a_tensor_of_a_list_of_fake_numbers_has_their_values():
    assert torch.tensor([fake_with_values(IDS).sum(), 3]).tolist() == [28, 3]
