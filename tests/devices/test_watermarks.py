"""The two limits of torch's allocator fit each other, and what the user has set stays."""

import pytest

from mps_trainer.devices.watermarks import HIGH, LOW, Ratio, limits, settle_low
from tests.devices.test_facts import gathered


@pytest.mark.parametrize(
    ("environ", "high", "low", "of_run"),
    [
        ({}, None, None, (1.0, 0.82)),  # torch's own limits fit each other
        ({}, 1.0, "0.82", (1.0, 0.82)),
        ({}, 0.0, None, (1.0, 0.82)),  # no limit
        ({}, 2.0, None, (1.0, 0.82)),
        ({HIGH: "0.7"}, None, "0.58", (0.7, 0.58)),  # alone, torch refuses all: invalid low watermark ratio 1.4
        ({HIGH: "0.7"}, 1.0, "0.58", (0.7, 0.58)),  # the environment goes before the setting
        ({HIGH: "0.0"}, 1.0, None, (0.0, 1.4)),
        ({HIGH: "1.8"}, 1.0, None, (1.8, 1.4)),
        ({LOW: "0.3"}, 1.0, "0.3", (1.0, 0.3)),
        ({LOW: "0"}, 1.0, "0", (1.0, 0.0)),
        ({HIGH: "0.5", LOW: "0.9"}, 1.0, "0.9", (0.5, 0.9)),  # torch says that this is wrong
        ({HIGH: "much"}, 1.0, None, None),
    ],
)
def test_the_low_one_is_set_where_it_would_not_fit(environ, high, low, of_run):
    environ = dict(environ)
    if of_run:
        assert limits(environ) == (of_run[0], pytest.approx(of_run[1], abs=0.006))
    settle_low(environ, high)
    assert environ.get(LOW) == low


@pytest.mark.parametrize(("system", "low"), [("Darwin", "0.41"), ("Linux", None)])
def test_it_is_set_on_a_mac_before_its_allocator_is_made(system, low):
    environ, seen = {}, []

    def import_torch():
        seen.append(environ.get(LOW))
        raise ImportError

    answers = {"system": lambda: system, "mac_version": lambda: "15.5", "import_torch": import_torch}
    facts = gathered(answers, environ, memory_limit=0.5)
    assert seen == [low]
    assert LOW not in facts.environment  # the user's


@pytest.mark.parametrize(
    ("text", "value", "is_number"),
    [
        ("0.8", 0.8, True),
        ("+.5e0", 0.5, True),
        ("inf", float("inf"), True),
        ("0.7GB", 0.7, False),
        ("0,7", 0.0, False),
        ("", 0.0, False),
        ("²", 0.0, False),
    ],
)
def test_a_limit_is_read_as_torch_reads_it(text, value, is_number):
    assert (Ratio(text).value, Ratio(text).is_number) == (value, is_number)
