"""Defines the launch settings: names, values, and precedence."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import MisconfigurationException
from ..utils.text import shown

DEVICES = ("auto", "mps", "cuda", "xpu", "cpu")
PRECISIONS = ("no", "fp16", "bf16")
MOST_PROCESSES = 1024  # on one machine; a slip of the finger has more
MOST_MEMORY = 2  # as torch takes it


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


@dataclass(frozen=True)
class InForce:
    """Settings, their file (None for none), and the keys that were not taken over, each with the reason."""

    settings: LaunchSettings = LaunchSettings()
    path: Path | None = None
    left: Mapping[str, str] = field(default_factory=dict)
    is_accelerates: bool = False


NAMES = tuple(each.name for each in dataclasses.fields(LaunchSettings))
DEFAULTS = LaunchSettings("auto", "no", False, 1, None)


def read_settings(values: Mapping[Any, Any], where: str) -> LaunchSettings:
    """Returns the settings that a file holds.

    Args:
        where: the file of the values, which errors begin with.

    Raises:
        MisconfigurationException: for a key that is no setting, or a value that one cannot have.
    """
    for name in values:
        if name not in NAMES:
            near = difflib.get_close_matches(shown(name, 60).strip("'"), NAMES, n=1)
            instead = f"Did you mean {near[0]}?" if near else f"The settings are {', '.join(NAMES)}."
            raise MisconfigurationException(
                f"{where} has the key {shown(name, 60)}, which is not a setting. {instead}"
            )
    return LaunchSettings(**{name: checked(name, value, where) for name, value in values.items()})


def checked(name: str, value: Any, where: str) -> Any:
    """Returns the value of a setting as it is kept; None stays None. Raises MisconfigurationException for others."""
    if value is None:
        return None
    if name == "mixed_precision" and value is False:
        value = "no"  # YAML reads the bare word as false
    if (reading := _READINGS[name](value)) is not None:
        return reading
    raise MisconfigurationException(f"{where} has {name}: {shown(value, 60)}. {explain(name)}")


def explain(name: str) -> str:
    """Returns the values that a setting may have, as a sentence."""
    return f"{name} is {_ACCEPTED[name]}."


def typed(name: str, text: str) -> Any:
    """Returns the value that was typed for a setting. Raises MisconfigurationException with the values it may have."""
    value: Any = text.strip().lower()
    if name == "memory_fraction" and value in ("none", "null"):
        return None
    if name == "mps_fallback":
        value = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}.get(value)
    elif name in ("num_processes", "memory_fraction"):
        value = _number(value, int if name == "num_processes" else float)
    reading = None if value is None else _READINGS[name](value)
    if reading is None:
        raise MisconfigurationException(f"{shown(text.strip(), 60)} is not valid: {explain(name)}")
    return reading


def _number(text: str, kind: Callable[[str], Any]) -> Any:
    try:
        return kind(text) if text.isascii() and len(text) < 20 else None
    except ValueError:
        return None


def _one_of(words: tuple[str, ...]) -> Callable[[Any], Any]:
    return lambda value: value.lower() if isinstance(value, str) and value.lower() in words else None


def _count(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 1 <= value <= MOST_PROCESSES else None


def _share(value: Any) -> float | None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and 0 <= value <= MOST_MEMORY else None


# Each returns a value as it is kept, None for an invalid one.
_READINGS: dict[str, Callable[[Any], Any]] = {
    "device": _one_of(DEVICES),
    "mixed_precision": _one_of(PRECISIONS),
    "mps_fallback": lambda value: value if isinstance(value, bool) else None,
    "num_processes": _count,
    "memory_fraction": _share,
}

_ACCEPTED = {
    "device": f"one of {', '.join(DEVICES)}",
    "mixed_precision": f"one of {', '.join(PRECISIONS)}",
    "mps_fallback": "true or false (yes or no)",
    "num_processes": f"a whole number from 1 to {MOST_PROCESSES}",
    "memory_fraction": f"a number from 0 (no limit) to {MOST_MEMORY}, or none",
}
