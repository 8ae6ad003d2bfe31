"""The mean loss between two logs."""

import pytest
import torch

from mps_trainer.loop.meter import LossMeter


def filled(losses, skip_nonfinite=True):
    meter = LossMeter(torch.device("cpu"), skip_nonfinite)
    for step, loss in enumerate(losses):
        meter.add(torch.tensor(loss), step)
    return meter


def test_nonfinite_loss_counts_as_the_mean_of_the_others_or_shows_when_it_is_not_filtered():
    # the running sum over the steps so far, as transformers' filter has it
    assert filled([2.0, float("nan"), float("inf")]).read(3, None)[0] == (2 + 2 / 2 + 3 / 3) / 3
    assert str(filled([2.0, float("nan")], skip_nonfinite=False).read(2, None)[0]) == "nan"


def test_a_loss_that_is_part_of_something_large_does_not_keep_it():
    meter = LossMeter(torch.device("cpu"), True)
    meter.add(torch.ones(1000)[3], 0)
    assert meter._losses.numbers[0].untyped_storage().nbytes() == 4
    assert meter.read(1, None)[0] == 1.0


@pytest.mark.parametrize("batches", [1, 511, 512, 513, 1025])
def test_losses_of_an_update_that_is_begun_again_are_forgotten(batches):
    meter = LossMeter(torch.device("cpu"), skip_nonfinite=False)
    meter.add(torch.tensor(3.0), 0)
    before = meter.snapshot()
    for _ in range(batches):
        meter.add(torch.tensor(100.0), 1)
    meter.restore(before)
    meter.add(torch.tensor(5.0), 1)
    assert meter.read(2, None)[0] == 4.0
