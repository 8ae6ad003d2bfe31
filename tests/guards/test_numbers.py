"""When a number that is not finite is worth a word."""

import math

import pytest

from mps_trainer.guards.numbers import OVERFLOWS, NonFinite, NumberWatch

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("look", "found"),
    [
        (([1.0, 2.0], [4, 5], [1.0, INF], [4, 5], [0.1, 0.2]), ("gradient norm", INF, 5, 0.2)),
        (([1.0, -INF], [3, 3], [NAN], [3], [0.5]), ("loss", -INF, 3, 0.5)),  # of one step the loss is told
    ],
)
def test_the_first_is_kept_until_it_is_taken(look, found):
    watch = NumberWatch()
    watch.look(*look)
    watch.look([INF, 1.0], [6, 6])
    assert watch.take() == (NonFinite(*found), 2)
    assert watch.take() == (None, 0)


def test_a_scaler_may_overflow_but_not_for_ever():
    watch = NumberWatch(scaled=True)
    for step in range(3 * OVERFLOWS):
        watch.look([], [], [1.0 if step % 10 == 0 else INF], [step], [None])  # the count begins anew
    assert watch.first is None
    watch = NumberWatch(scaled=True)
    steps = list(range(OVERFLOWS - 1))
    watch.look([], [], [INF] * len(steps), steps, [None] * len(steps))
    assert watch.first is None
    watch.look([], [], [INF], [OVERFLOWS - 1], [0.1])
    assert watch.first == NonFinite("gradient norm", INF, OVERFLOWS - 1, 0.1)
    for value in (NAN, INF):
        watch = NumberWatch(scaled=True)
        watch.look([value], [0], [INF], [0], [0.1])
        assert watch.first.what == "loss"
