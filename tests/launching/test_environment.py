"""The variables that a script begins with."""

from __future__ import annotations

import pytest

from mps_trainer.devices.facts import RECORDED_VARIABLES
from mps_trainer.launching.environment import environment, set_aside, variables
from mps_trainer.launching.settings import DEFAULTS, LaunchSettings

NOTHING = LaunchSettings()
ALL = LaunchSettings("cpu", "bf16", True, 2, 0.5)


def test_every_setting_has_a_variable_that_is_recorded():
    found = {
        "ACCELERATE_USE_CPU": "true",
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "PYTORCH_ENABLE_MPS_FALLBACK": "1",
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO": "0.5",
    }
    assert variables(ALL) == found
    assert set(found) <= set(RECORDED_VARIABLES)


@pytest.mark.parametrize("settings", [NOTHING, LaunchSettings("auto"), LaunchSettings("mps", None, False, 4)])
def test_what_needs_no_variable_sets_none(settings):
    assert environment(settings, NOTHING, {"HOME": "/root"}) == {"HOME": "/root"}


def test_the_defaults_turn_off_nothing_that_the_shell_has_set():
    environ = {"ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_USE_CPU": "1", "PYTORCH_ENABLE_MPS_FALLBACK": "1"}
    assert environment(NOTHING, DEFAULTS, environ) == environ


def test_a_flag_goes_before_the_shell_and_the_shell_before_the_file():
    name = "ACCELERATE_MIXED_PRECISION"
    shell, flag, file = {name: "fp16"}, LaunchSettings(mixed_precision="no"), LaunchSettings(mixed_precision="bf16")
    assert environment(flag, file, shell)[name] == "no"
    assert environment(NOTHING, file, shell)[name] == "fp16"
    assert environment(NOTHING, file, {})[name] == "bf16"
    assert set_aside(file, shell) == shell
    assert set_aside(file, {name: "bf16"}) == set_aside(file, {}) == set_aside(NOTHING, shell) == {}


def test_the_lower_watermark_fits_the_one_that_is_set():
    high, low = "PYTORCH_MPS_HIGH_WATERMARK_RATIO", "PYTORCH_MPS_LOW_WATERMARK_RATIO"
    half = LaunchSettings(memory_fraction=0.5)
    assert float(environment(NOTHING, half, {})[low]) < 0.5
    assert environment(NOTHING, half, {low: "0.3"})[low] == "0.3"
    # without a limit any lower one fits
    assert low not in environment(NOTHING, LaunchSettings(memory_fraction=0.0), {})
    # what the shell has set is the shell's to make fit
    assert environment(NOTHING, half, {high: "0.7"}) == {high: "0.7"}
