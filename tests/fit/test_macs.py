"""The smallest Mac is found by what Metal recommends on each."""

from __future__ import annotations

import pytest

from mps_trainer.fit.macs import GIB, SIZES, limit_of, smallest_for


@pytest.mark.parametrize(
    ("size", "limit"), [(16, 16 * 2 / 3), (32, 32 * 2 / 3), (36, 27), (64, 48), (96, 72), (128, 107.5)]
)
def test_limits(size, limit):
    assert limit_of(size) == round(limit * GIB)


def test_the_smallest_mac():
    assert [smallest_for(limit_of(size)) for size in SIZES] == list(SIZES)
    assert [smallest_for(limit_of(size) + 1) for size in SIZES] == [*SIZES[1:], None]
