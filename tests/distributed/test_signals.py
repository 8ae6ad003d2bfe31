"""A signal that reaches one of the processes ends all of them at the same place."""

import pytest

from tests.conftest import assert_same_weights


@pytest.mark.parametrize("name", ["a_signal_in_an_evaluation", "a_signal_in_an_evaluation_of_shards"])
def test_an_evaluation_is_left_by_all_and_begun_again_by_the_run_that_goes_on(made_by, name):
    for made in made_by(2)(name):
        assert made["ended"] == 143
        assert made["step"] == 2
        assert made["evaluations"] == 0
        assert made["times"] <= 4, "of the 11 batches that each process has"
        whole, again = made["all_evaluations"]
        assert len(whole) == 5  # after steps 2, 4, 6 and 8, and the last one
        assert again == whole
        assert_same_weights(*made["weights"])


@pytest.mark.parametrize(
    ("name", "steps"), [("a_signal_in_a_step", (3, 4)), ("a_signal_in_the_last_step", (9,))], ids=["", "the last one"]
)
def test_a_step_is_finished_by_all(made_by, name, steps):
    made = made_by(2)(name)
    assert made[0]["step"] == made[1]["step"]
    for one in made:
        assert one["ended"] == 143
        assert one["step"] in steps
        assert_same_weights(*one["weights"])


def test_one_that_comes_when_all_steps_are_done_ends_all(made_by):
    assert [made["ended"] for made in made_by(2)("a_signal_after_the_last_step")] == [143, 143]


def test_all_stop_after_the_first_step_where_loading_draws_in_one_of_them(made_by):
    for made in made_by(2)("loading_draws_in_one"):
        assert made["ended"] == 143
        assert made["step"] == 1
