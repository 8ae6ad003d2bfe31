"""Defines the launch settings: names, values, precedence, and the environment variables that they set."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..arguments.model import LAUNCHED
from ..devices import ACCELERATORS
from ..devices.facts import FALLBACK
from ..devices.watermarks import HIGH, settle_low
from ..errors import MisconfigurationException
from ..utils.text import did_you_mean, shown

DEVICES = ("auto", *ACCELERATORS)
PRECISIONS = ("no", "fp16", "bf16")
MOST_PROCESSES = 1024  # on one machine; a slip of the finger has more
MOST_MEMORY = 2  # as torch takes it
USE_CPU = "ACCELERATE_USE_CPU"


@dataclass(frozen=True)
class LaunchSettings:
    """The settings that start a script. None is not set and leaves the choice to other settings: see `over`.

    Args:
        device: "auto" (the first usable of mps, cuda, xpu, cpu), "cpu", or a GPU that has to be there.
        mixed_precision: the format that a Trainer, or Accelerate, autocasts to: "no", "fp16", "bf16".
        mps_fallback: True runs operators without an MPS kernel on the CPU.
        num_processes: the number of processes that train together on this machine.
        memory_fraction: the limit on mps, as a share of the maximum that Metal recommends; 0 is no limit.
    """

    device: str | None = None
    mixed_precision: str | None = None
    mps_fallback: bool | None = None
    num_processes: int | None = None
    memory_fraction: float | None = None

    def over(self, others: LaunchSettings) -> LaunchSettings:
        """Returns these settings, with those of `others` where they are not set."""
        return dataclasses.replace(others, **self.given())

    def given(self) -> dict[str, Any]:
        """Returns the settings that are set."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def variables(self) -> dict[str, str]:
        """Returns the environment variables of the settings, for torch, a Trainer and Accelerate.

        `num_processes` has none, and neither has a GPU by its name: a script takes the one that is there.
        """
        found = {}
        if self.device == "cpu":
            found[USE_CPU] = "true"
        if self.mixed_precision is not None:
            found[LAUNCHED] = self.mixed_precision
        if self.mps_fallback:
            found[FALLBACK] = "1"
        if self.memory_fraction is not None:
            found[HIGH] = f"{self.memory_fraction:g}"
        return found


@dataclass(frozen=True)
class LoadedSettings:
    """Settings, their file (None for none), and the keys of the file that are ignored, each with the reason."""

    settings: LaunchSettings = LaunchSettings()
    path: Path | None = None
    ignored: Mapping[str, str] = field(default_factory=dict)
    is_accelerates: bool = False


NAMES = tuple(each.name for each in dataclasses.fields(LaunchSettings))
DEFAULTS = LaunchSettings("auto", "no", False, 1, None)


def environment(flags: LaunchSettings, file: LaunchSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns all variables of a script. Flags override the shell's variables, which override the file."""
    whole = {**file.variables(), **environ, **flags.variables()}
    if whole.get(HIGH) != environ.get(HIGH):
        settle_low(whole)  # torch reads both at the same time, and a script may be without this Trainer
    return whole


def read_settings(values: Mapping[Any, Any], source: str) -> LaunchSettings:
    """Returns the settings in the file `source`, which errors begin with.

    Raises:
        MisconfigurationException: for an unknown key or an invalid value.
    """
    for name in values:
        if name not in NAMES:
            key = shown(name, 60)
            instead = did_you_mean(key.strip("'"), NAMES) or f" The settings are {', '.join(NAMES)}."
            raise MisconfigurationException(f"{source} has the key {key}, which is not a setting.{instead}")
    return LaunchSettings(**{name: checked(name, value, source) for name, value in values.items()})


def checked(name: str, value: Any, source: str) -> Any:
    """Returns the value of a setting as it is kept; None stays None. Raises MisconfigurationException for others."""
    if value is None:
        return None
    if (kept := _normalized(name, value)) is not None:
        return kept
    raise MisconfigurationException(f"{source} has {name}: {shown(value, 60)}. {explain(name)}")


def typed(name: str, text: str) -> Any:
    """Returns the value that was typed for a setting. Raises MisconfigurationException with the values it may have."""
    word = text.strip().lower()
    value: Any = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}.get(word, word)
    if name == "memory_fraction" and word in ("none", "null"):
        return None
    for number in (float, int):  # an int is also a float, and stays an int
        with contextlib.suppress(ValueError):
            value = number(word)
    if (kept := _normalized(name, value)) is not None:
        return kept
    raise MisconfigurationException(f"{shown(text.strip(), 60)} is not valid: {explain(name)}")


def explain(name: str) -> str:
    """Returns the values that a setting may have, as a sentence."""
    return f"{name} is {_ACCEPTED[name]}."


def _normalized(name: str, value: Any) -> Any:
    """Returns a value as it is kept, None for an invalid one."""
    if name == "mixed_precision" and value is False:
        return "no"  # YAML reads the bare word as false
    if name == "mps_fallback":
        return value if isinstance(value, bool) else None
    if name in _CHOICES:
        return value.lower() if isinstance(value, str) and value.lower() in _CHOICES[name] else None
    if name == "num_processes":
        return value if type(value) is int and 1 <= value <= MOST_PROCESSES else None
    return float(value) if type(value) in (int, float) and 0 <= value <= MOST_MEMORY else None


_CHOICES = {"device": DEVICES, "mixed_precision": PRECISIONS}
_ACCEPTED = {
    **{name: f"one of {', '.join(choices)}" for name, choices in _CHOICES.items()},
    "mps_fallback": "true or false (yes or no)",
    "num_processes": f"a whole number from 1 to {MOST_PROCESSES}",
    "memory_fraction": f"a number from 0 (no limit) to {MOST_MEMORY}, or none",
}
