"""Tests the valid values of settings, their precedence, and the variables that a script begins with."""

import pytest

from mps_trainer.devices.facts import RECORDED_VARIABLES
from mps_trainer.launching.settings import DEFAULTS, SETTINGS, command_of, environment, read_settings, variables
from tests.conftest import refusal

PRECISION = "ACCELERATE_MIXED_PRECISION"
HIGH, LOW = "PYTORCH_MPS_HIGH_WATERMARK_RATIO", "PYTORCH_MPS_LOW_WATERMARK_RATIO"


def test_read_settings_takes_every_setting():
    # False is YAML's bare `no`
    values = {
        "device": "MPS",
        "mixed_precision": False,
        "mps_fallback": True,
        "num_processes": 3,
        "memory_fraction": 1,
    }
    assert read_settings(values, "f") == {**values, "device": "mps", "mixed_precision": "no"}
    assert list(values) == list(DEFAULTS)
    assert read_settings(dict.fromkeys(DEFAULTS), "f") == {} == read_settings({}, "f")


INVALID = {
    "device": ["gpu", ["mps"], 0],
    "mixed_precision": ["fp8", True],
    "mps_fallback": ["perhaps", 2],
    "num_processes": [0, True, 2.5, "two", 10**6],
    "memory_fraction": [2.1, -0.1, float("nan"), "half", False],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in INVALID.items() for value in values])
def test_read_settings_names_an_invalid_value_and_the_valid_ones(name, value):
    refused = refusal(read_settings, {name: value}, "my.yaml")
    assert refused.startswith(f"my.yaml: {name}={value!r} is not accepted: it must be ")


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("mixed_precison", "Did you mean mixed_precision?"),
        ("colour", "Known are device, "),
        (3, "Known are "),
    ],
)
def test_read_settings_names_the_nearest_to_an_unknown_key(key, says):
    refused = refusal(read_settings, {"device": "mps", key: 1}, "f")
    assert refused.startswith("f has an unknown key ")
    assert says in refused


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("mixed_precision", "no", "no"),
        ("mps_fallback", "y", True),
        ("mps_fallback", "no", False),
        ("num_processes", "4", 4),
        ("memory_fraction", "0", 0),
        ("memory_fraction", "1.5", 1.5),
        ("memory_fraction", "none", None),
    ],
)
def test_answer_is_read(name, text, value):
    assert SETTINGS[name].convert(text) == value


def test_variables_are_set_for_every_setting_and_recorded():
    found = variables(
        {**DEFAULTS, "device": "cpu", "mixed_precision": "bf16", "mps_fallback": True, "memory_fraction": 0.5}
    )
    assert found == {"ACCELERATE_USE_CPU": "true", PRECISION: "bf16", "PYTORCH_ENABLE_MPS_FALLBACK": "1", HIGH: "0.5"}
    assert set(found) <= set(RECORDED_VARIABLES)


def test_environment_fits_the_lower_watermark_to_the_one_that_is_set():
    half = {"memory_fraction": 0.5}
    assert float(environment({}, half, {})[LOW]) < 0.5
    # the shell's own setting stays as it is
    assert environment({}, half, {HIGH: "0.7"}) == {HIGH: "0.7"}


def test_a_command_that_starts_itself_again_is_known_by_its_first_words_and_another_by_its_own():
    first = {"MPS_TRAINER_COMMAND": command_of(["launch", "--restarts", "3", "a b.py"], {})}
    assert command_of(["launch", "a b.py"], first) == "launch --restarts 3 'a b.py'"
    assert command_of(["run", "other.py"], first) == "run other.py"
