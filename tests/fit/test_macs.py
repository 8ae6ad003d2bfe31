"""The smallest Mac is found by what Metal recommends on each."""

from __future__ import annotations

import pytest

from mps_trainer.fit.macs import GIB, SIZES, higher_limit_of, limit_of, smallest_for


@pytest.mark.parametrize(
    ("size", "limit"), [(16, 16 * 2 / 3), (32, 32 * 2 / 3), (36, 27), (64, 48), (96, 72), (128, 96)]
)
def test_limits(size, limit):
    assert limit_of(size) == round(limit * GIB)


@pytest.mark.parametrize(("size", "megabytes"), [(16, 12_713.12), (24, 19_069.67), (32, 26_800.60), (36, 30_150.67)])
def test_some_macs_recommend_more_as_their_logs_say(size, megabytes):
    assert higher_limit_of(size) == pytest.approx(megabytes * 10**6, rel=1e-4)  # the limits above have two decimals


def test_a_step_fits_where_it_fits_at_the_lower_limit():
    assert all(higher_limit_of(size) > limit_of(size) for size in SIZES if higher_limit_of(size))
    assert [size for size in SIZES if higher_limit_of(size) is None] == [8, 96]
    assert smallest_for(higher_limit_of(16)) == 24


def test_the_smallest_mac():
    assert [smallest_for(limit_of(size)) for size in SIZES] == list(SIZES)
    assert [smallest_for(limit_of(size) + 1) for size in SIZES] == [*SIZES[1:], None]
