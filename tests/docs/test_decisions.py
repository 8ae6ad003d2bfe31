"""The decisions that README and the documentation print are the ones that the package takes."""

from __future__ import annotations

import pytest

from mps_trainer import DeviceRequest, resolve

from .machines import MACHINES
from .pages import all_blocks, unwrapped

SHOWN = all_blocks(kind="decision")


@pytest.mark.parametrize("block", SHOWN, ids=str)
def test_a_shown_decision_is_the_one_for_that_machine(block):
    assert unwrapped(block.text) == str(resolve(DeviceRequest(), MACHINES[block.label]))


def test_every_machine_is_shown():
    assert {block.label for block in SHOWN} == set(MACHINES)
