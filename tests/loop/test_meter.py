"""The mean loss between two logs."""

import pytest
import torch

from mps_trainer.loop.meter import LossMeter


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
