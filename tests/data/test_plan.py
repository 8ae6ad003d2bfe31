"""The plan counts the steps of a run and locates a step in its epoch."""

import re

import pytest

from mps_trainer.data.plan import StepPlan
from tests.conftest import refusal


@pytest.mark.parametrize(
    ("batches", "accumulation", "max_steps", "epochs", "updates", "steps", "begun"),
    [
        (10, 1, -1, 3, 10, 30, 3),
        (10, 3, -1, 2, 4, 8, 2),
        (10, 20, -1, 2, 1, 2, 2),
        (10, 1, -1, 0.5, 10, 5, 1),
        (10, 1, -1, 2.55, 10, 26, 3),
        (10, 1, 7, 3, 10, 7, 1),
        (10, 1, 21, 1, 10, 21, 3),
        (10, 1, -1, 0, 10, 0, 0),
    ],
)
def test_steps_follow_from_batches_accumulation_and_limits(
    batches, accumulation, max_steps, epochs, updates, steps, begun
):
    plan = StepPlan.make(batches, accumulation, max_steps, epochs)
    assert (plan.updates_per_epoch, plan.max_steps, plan.epochs) == (updates, steps, begun)


def test_stream_without_a_number_of_steps_and_an_empty_dataset_are_refused():
    assert re.search(r"has no length.*Set max_steps", refusal(StepPlan.make, None, 1, -1, 3, kind=ValueError))
    assert StepPlan.make(None, 2, 6, 3).progress(0, 6) == 0.5
    assert refusal(StepPlan.make, 0, 1, -1, 3, kind=ValueError) == (
        "There is nothing to train on: the training dataset gives no batch. Check that it is not empty, and that "
        "dataloader_drop_last does not leave out its only batch."
    )


def test_the_last_update_of_an_epoch_has_the_batches_that_are_left():
    plan = StepPlan.make(10, 4, -1, 2)
    assert [plan.batches_in_update(done, 4) for done in (0, 4, 6, 7, 8, 9)] == [4, 4, 4, 3, 2, 1]
    assert plan.batches_in_update(10, 4) == 1  # to find out that there is none
    assert StepPlan.make(None, 4, 6, 3).batches_in_update(100, 4) == 4


@pytest.mark.parametrize(
    ("batches", "max_steps", "epochs", "asked"),
    [
        (1, -1, 1e18, "num_train_epochs=1e+18 asks for 1e+18 steps"),
        (10_000, -1, 1e9, "num_train_epochs=1e+09 asks for 1e+13 steps"),
        (10, -1, 1e308, "num_train_epochs=1e+308 asks for inf steps"),
        (10, 10**12 + 1, 3, "max_steps=1000000000001 asks for 1e+12 steps"),
        (None, 2**63 - 1, 3, "max_steps=9223372036854775807 asks for 9.22e+18 steps"),
    ],
)
def test_a_run_that_cannot_end_is_refused(batches, max_steps, epochs, asked):
    said = refusal(StepPlan.make, batches, 1, max_steps, epochs, kind=ValueError)
    assert asked in said
    assert "Ask for at most 1e+12" in said


@pytest.mark.parametrize(("batches", "max_steps", "epochs"), [(1, -1, 1e12), (1, 10**12, 3), (None, 10**12, 3)])
def test_a_run_of_the_most_steps_is_planned(batches, max_steps, epochs):
    assert StepPlan.make(batches, 1, max_steps, epochs).max_steps == 10**12
