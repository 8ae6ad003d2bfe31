"""Tests the valid values of settings in files and answers, and their precedence."""

from __future__ import annotations

import pytest

from mps_trainer import MisconfigurationException
from mps_trainer.launching.settings import DEFAULTS, NAMES, LaunchSettings, explain, read_settings, typed


def test_all_settings_are_read():
    values = {
        "device": "MPS",
        "mixed_precision": "bf16",
        "mps_fallback": True,
        "num_processes": 3,
        "memory_fraction": 1,
    }
    assert read_settings(values, "f") == LaunchSettings("mps", "bf16", True, 3, 1.0)
    assert list(values) == list(NAMES)


def test_null_is_what_nobody_has_said():
    assert read_settings(dict.fromkeys(NAMES), "f") == LaunchSettings() == read_settings({}, "f")


def test_yamls_bare_no_is_a_precision():
    assert read_settings({"mixed_precision": False}, "f").mixed_precision == "no"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("device", "gpu"),
        ("device", ["mps"]),
        ("device", 0),
        ("mixed_precision", "fp8"),
        ("mixed_precision", True),
        ("mps_fallback", "yes"),
        ("mps_fallback", 1),
        ("num_processes", 0),
        ("num_processes", -1),
        ("num_processes", True),
        ("num_processes", 2.0),
        ("num_processes", "2"),
        ("num_processes", 10**6),
        ("memory_fraction", 2.1),
        ("memory_fraction", -0.1),
        ("memory_fraction", float("nan")),
        ("memory_fraction", "half"),
        ("memory_fraction", False),
    ],
)
def test_a_value_that_cannot_be_is_named_with_what_can(name, value):
    with pytest.raises(MisconfigurationException) as refused:
        read_settings({name: value}, "my.yaml")
    assert str(refused.value) == f"my.yaml has {name}: {value!r}. {explain(name)}"


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("mixed_precison", "Did you mean mixed_precision?"),
        ("colour", "The settings are device, "),
        (3, "The settings are device, "),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest(key, says):
    with pytest.raises(MisconfigurationException, match=r"^f has the key .* which is not a setting\. ") as refused:
        read_settings({"device": "mps", key: 1}, "f")
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("device", " MPS ", "mps"),
        ("mixed_precision", "no", "no"),
        ("mps_fallback", "Y", True),
        ("mps_fallback", "no", False),
        ("num_processes", "4", 4),
        ("memory_fraction", "0", 0.0),
        ("memory_fraction", "1.5", 1.5),
        ("memory_fraction", "none", None),
    ],
)
def test_an_answer_is_read(name, text, value):
    assert typed(name, text) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("device", "gpu"),
        ("mixed_precision", "32"),
        ("mps_fallback", "perhaps"),
        ("num_processes", "two"),
        ("num_processes", "1.5"),
        ("num_processes", "²"),
        ("num_processes", "9" * 5000),
        ("memory_fraction", "nan"),
        ("memory_fraction", "80%"),
    ],
)
def test_an_answer_that_will_not_do_is_explained(name, text):
    with pytest.raises(MisconfigurationException) as refused:
        typed(name, text)
    assert explain(name) in str(refused.value)
    assert len(str(refused.value)) < 200


def test_what_somebody_has_said_goes_before_the_rest():
    flags, file = LaunchSettings(mixed_precision="no"), LaunchSettings("cpu", "bf16", num_processes=2)
    assert flags.over(file).over(DEFAULTS) == LaunchSettings("cpu", "no", False, 2, None)
