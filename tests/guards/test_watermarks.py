"""The two limits of torch's allocator fit each other, and what the user has set stays."""

import pytest

from mps_trainer import MPSAccelerator, gather_facts
from mps_trainer.devices.facts import Probes
from mps_trainer.guards.watermarks import HIGH, LOW, settle_low
from tests.devices.machines import mac


@pytest.mark.parametrize(
    ("environ", "high", "low"),
    [
        ({}, None, None),  # torch's own limits fit each other
        ({}, 1.0, "0.82"),
        ({}, 0.0, None),  # no limit
        ({}, 2.0, None),
        ({HIGH: "0.7"}, None, "0.58"),  # alone, torch refuses every allocation: invalid low watermark ratio 1.4
        ({HIGH: "0.7"}, 1.0, "0.58"),  # the environment goes before the setting
        ({HIGH: "0.0"}, 1.0, None),
        ({LOW: "0.3"}, 1.0, "0.3"),
        ({HIGH: "0.5", LOW: "0.9"}, 1.0, "0.9"),  # torch says that this is wrong
        ({HIGH: "much"}, 1.0, None),
    ],
    ids=str,
)
def test_the_low_one_is_set_where_it_would_not_fit(environ, high, low):
    settle_low(environ, high)
    assert environ.get(LOW) == low
    if low is not None and HIGH in environ and low != "0.9":
        assert float(low) <= float(environ[HIGH])


@pytest.mark.parametrize(("system", "low"), [("Darwin", "0.41"), ("Linux", None)])
def test_it_is_set_on_a_mac_before_its_allocator_is_made(system, low):
    environ, seen = {}, []

    def import_torch():
        seen.append(environ.get(LOW))
        raise ImportError

    probes = Probes(system=lambda: system, mac_version=lambda: "15.5", import_torch=import_torch)
    facts = gather_facts(probes, environ, memory_limit=0.5)
    assert seen == [low]
    assert LOW not in facts.environment  # the user's


def test_limits_that_torch_refuses_are_the_reason():
    refused = mac("15.5", "2.13.0", mps_allocation_ok=False, mps_allocation_error="invalid low watermark ratio 1.4")
    obstacle = MPSAccelerator.why_not(refused)
    assert "limits of memory" in obstacle.cause
    assert "PYTORCH_MPS_LOW_WATERMARK_RATIO" in obstacle.remedy
