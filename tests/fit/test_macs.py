"""The smallest Mac is found by what Metal recommends on each."""

import pytest

from mps_trainer.fit.fit_report import GIB, SIZES, higher_limit_of, limit_of, smallest_for


@pytest.mark.parametrize(("size", "gib"), [(16, 16 * 2 / 3), (32, 32 * 2 / 3), (36, 27), (64, 48), (128, 96)])
def test_metal_recommends_two_thirds_and_from_36_gb_on_three_quarters(size, gib):
    assert limit_of(size) == round(gib * GIB)


def test_a_step_fits_where_it_fits_at_the_lower_limit():
    assert all(higher_limit_of(size) > limit_of(size) for size in SIZES if higher_limit_of(size))
    assert smallest_for(higher_limit_of(16)) == 24
    assert [smallest_for(limit_of(size)) for size in SIZES] == list(SIZES)
    assert [smallest_for(limit_of(size) + 1) for size in SIZES] == [*SIZES[1:], None]
