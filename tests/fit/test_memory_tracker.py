"""The bytes that exist while fake tensors are made and freed."""

import re

import pytest
import torch

from mps_trainer.tools.fit.fake_tensors import fake_mode, fake_of
from mps_trainer.tools.fit.memory_tracker import ACTIVATIONS, LOGITS, OPTIMIZER, WEIGHTS, MemoryTracker
from tests.conftest import refusal

KIB = torch.zeros(256)
ROWS, HEAD = torch.zeros(3, 5), torch.zeros(5, 7)
REAL = torch.tensor([1, 2])


@pytest.fixture
def tracker():
    with fake_mode(), MemoryTracker(words=7) as tracker:
        yield tracker


def test_a_storage_counts_once_and_until_it_is_freed(tracker):
    first = fake_of(KIB) + 1
    view = first.view(16, 16).t()
    second = first * 2
    del first, second
    third = view.contiguous()
    assert tracker.peak == {ACTIVATIONS: 2048}
    del view, third
    tracker.forget_peak()
    assert tracker.peak == {ACTIVATIONS: 0}
    (fake_of(KIB) + 1).add_(1).mul_(2)  # changes in place
    assert tracker.peak == {ACTIVATIONS: 1024}


def test_tensors_belong_to_a_kind(tracker):
    weight = fake_of(KIB)
    tracker.belongs([weight, weight.view(2, 128)], WEIGHTS)
    result = weight + 1
    tracker.kind = OPTIMIZER
    state = torch.zeros_like(weight)
    assert tracker.peak == {WEIGHTS: 1024, ACTIVATIONS: 1024, OPTIMIZER: 1024}
    tracker.belongs([result], OPTIMIZER)
    tracker.forget_peak()
    assert tracker.peak == {WEIGHTS: 1024, ACTIVATIONS: 0, OPTIMIZER: 2048}
    assert state.shape == result.shape


def test_tensors_over_the_vocabulary_are_logits_and_real_ones_not_counted(tracker):
    assert int((REAL + 1).sum()) == 5
    assert tracker.peak == {}
    logits = fake_of(ROWS) @ fake_of(HEAD)
    assert tracker.peak == {LOGITS: logits.numel() * 4}


def test_values_that_there_are_not(tracker):
    tensor = fake_of(KIB[:6].view(2, 3))
    assert not (tensor > 1).any()
    assert (tensor > 1).all()  # a check, which a step that trains passes
    assert tensor.sum().item() == 1
    assert tensor[tensor > 0].shape == (6,)
    assert tensor.masked_select(tensor > 0).shape == (6,)
    assert (tensor > 0).nonzero().shape == (6, 2)
    assert re.search("depends on the values in others.*mps-trainer simulate", refusal(tensor.unique))
