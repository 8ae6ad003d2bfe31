"""The mean loss between two logs."""

import torch

from mps_trainer.training.meter import LossMeter


def filled(losses, skip_nonfinite=True):
    meter = LossMeter(torch.device("cpu"), skip_nonfinite)
    for step, loss in enumerate(losses):
        meter.add(torch.tensor(loss), step)
    return meter


def test_reading_gives_the_mean_since_the_last_reading():
    meter = filled([1.0, 2.0, 3.0])
    assert meter.read(3, None) == (2.0, None)
    meter.add(torch.tensor(5.0), 3)
    assert meter.read(4, torch.tensor(0.5)) == (5.0, 0.5)
    assert meter.mean(4) == 11 / 4


def test_nonfinite_loss_counts_as_the_mean_of_the_others():
    # the running sum over the steps so far, as transformers' filter has it
    assert filled([2.0, float("nan"), float("inf")]).read(3, None)[0] == (2 + 2 / 2 + 3 / 3) / 3


def test_nonfinite_loss_shows_when_it_is_not_filtered():
    assert str(filled([2.0, float("nan")], skip_nonfinite=False).read(2, None)[0]) == "nan"


def test_state_carries_the_sum_between_logs_over():
    first = filled([1.0, 2.0])
    second = LossMeter(torch.device("cpu"), True)
    second.load_state(first.state())
    second.add(torch.tensor(6.0), 2)
    assert second.read(3, None)[0] == 3.0
