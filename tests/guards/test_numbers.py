"""When a number that is not finite is worth a word."""

import math

import pytest

from mps_trainer.guards.numbers import OVERFLOWS, NonFinite, NumberWatch

NAN, INF = math.nan, math.inf


def test_the_first_of_a_loss_and_a_norm_is_kept_until_it_is_taken():
    watch = NumberWatch()
    watch.look([1.0, 2.0], [4, 5], [1.0, INF], [4, 5], [0.1, 0.2])
    watch.look([INF, 1.0], [6, 6])
    assert watch.take() == (NonFinite("gradient norm", INF, 5, 0.2), 2)
    assert watch.take() == (None, 0)


def test_of_one_step_the_loss_is_what_is_told():
    watch = NumberWatch()
    watch.look([1.0, -INF], [3, 3], [NAN], [3], [0.5])
    assert watch.take() == (NonFinite("loss", -INF, 3, 0.5), 1)


def test_a_scaler_may_overflow_but_not_for_ever():
    watch = NumberWatch(scaled=True)
    steps = list(range(OVERFLOWS - 1))
    watch.look([], [], [INF] * len(steps), steps, [None] * len(steps))
    assert watch.first is None
    watch.look([], [], [INF], [OVERFLOWS - 1], [0.1])
    assert watch.first == NonFinite("gradient norm", INF, OVERFLOWS - 1, 0.1)


def test_a_step_without_an_overflow_begins_the_count_anew():
    watch = NumberWatch(scaled=True)
    for step in range(3 * OVERFLOWS):
        watch.look([], [], [1.0 if step % 10 == 0 else INF], [step], [None])
    assert watch.first is None


@pytest.mark.parametrize("value", [NAN, INF])
def test_a_loss_counts_under_a_scaler_as_well(value):
    watch = NumberWatch(scaled=True)
    watch.look([value], [0], [INF], [0], [0.1])
    assert watch.first.what == "loss"
