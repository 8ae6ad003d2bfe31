"""Defines the launch settings: names, values, and the environment variables that they set.

Settings are a dictionary of those that are set, so that `{**DEFAULTS, **file, **flags}` is what a script starts with.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ..arguments.model import LAUNCHED
from ..devices import ACCELERATORS
from ..devices.facts import FALLBACK
from ..devices.watermarks import HIGH, settle_low
from ..errors import MisconfigurationException
from ..utils.text import did_you_mean, shown

Settings = dict[str, Any]

DEVICES = ("auto", *ACCELERATORS)
PRECISIONS = ("no", "fp16", "bf16")
MOST_PROCESSES = 1024  # on one machine; a slip of the finger has more
MOST_MEMORY = 2  # torch takes no more
USE_CPU = "ACCELERATE_USE_CPU"
COMMAND = "MPS_TRAINER_COMMAND"  # see `command_of`

DEFAULTS: Settings = {
    "device": "auto",  # the first usable of mps, cuda, xpu, cpu; others are "cpu", or a GPU that has to be there
    "mixed_precision": "no",  # the format that a Trainer, or Accelerate, autocasts to
    "mps_fallback": False,  # True runs operators without an MPS kernel on the CPU
    "num_processes": 1,  # they train together on this machine
    "memory_fraction": None,  # the limit on mps, as a share of the maximum that Metal recommends; 0 is no limit
}
_CHOICES = {"device": DEVICES, "mixed_precision": PRECISIONS}
ACCEPTED = {
    **{name: f"one of {', '.join(choices)}" for name, choices in _CHOICES.items()},
    "mps_fallback": "true or false (yes or no)",
    "num_processes": f"a whole number from 1 to {MOST_PROCESSES}",
    "memory_fraction": f"a number from 0 (no limit) to {MOST_MEMORY}, or none",
}


def variables(settings: Settings) -> dict[str, str]:
    """Returns the environment variables of the settings, for torch, a Trainer and Accelerate.

    `num_processes` has none, and neither has a GPU by its name: a script takes the one that is there.
    """
    fraction = settings.get("memory_fraction")
    found = {
        USE_CPU: "true" if settings.get("device") == "cpu" else None,
        LAUNCHED: settings.get("mixed_precision"),
        FALLBACK: "1" if settings.get("mps_fallback") else None,
        HIGH: None if fraction is None else f"{fraction:g}",
    }
    return {name: value for name, value in found.items() if value is not None}


def command_of(words: Sequence[str], environ: Mapping[str, str]) -> str:
    """Returns the words of `launch` or `run` up to the script, for the command that resumes a run.

    Where a command starts itself again for the same script, they are those of the first.
    """
    outer = environ.get(COMMAND)
    return outer if outer and shlex.split(outer)[-1] == words[-1] else shlex.join(words)


def environment(flags: Settings, file: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns all variables of a script. Flags override the shell's variables, which override the file."""
    whole = {**variables(file), **environ, **variables(flags)}
    if whole.get(HIGH) != environ.get(HIGH):
        settle_low(whole)  # torch reads both at the same time, and a script may be without this Trainer
    return whole


def read_settings(values: Mapping[Any, Any], source: str) -> Settings:
    """Returns the settings in the file `source`, which errors begin with. None is not set.

    Raises:
        MisconfigurationException: for an unknown key or an invalid value.
    """
    for name in values:
        if name not in DEFAULTS:
            key = shown(name, 60)
            instead = did_you_mean(key.strip("'"), DEFAULTS) or f" The settings are {', '.join(DEFAULTS)}."
            raise MisconfigurationException(f"{source} has the key {key}, which is not a setting.{instead}")
    return {
        name: checked(name, value, f"{source} has {name}: {shown(value, 60)}.")
        for name, value in values.items()
        if value is not None
    }


def typed(name: str, text: str) -> Any:
    """Returns the value that was typed for a setting. Raises MisconfigurationException with the values it may have."""
    word = text.strip().lower()
    if name == "memory_fraction" and word in ("none", "null"):
        return None
    value: Any = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}.get(word, word)
    for number in (float, int):  # an int is also a float, and stays an int
        with contextlib.suppress(ValueError):
            value = number(word)
    return checked(name, value, f"{shown(text.strip(), 60)} is not valid:")


def checked(name: str, value: Any, wrong: str) -> Any:
    """Returns the value of a setting as it is kept. Raises MisconfigurationException, which begins with `wrong`."""
    if name == "mixed_precision" and value is False:
        value = "no"  # YAML reads the bare word as false
    if name in _CHOICES:
        value = value.lower() if isinstance(value, str) else value
        is_valid = value in _CHOICES[name]
    elif name == "mps_fallback":
        is_valid = isinstance(value, bool)
    elif name == "num_processes":
        is_valid = type(value) is int and 1 <= value <= MOST_PROCESSES
    else:
        is_valid = type(value) in (int, float) and 0 <= value <= MOST_MEMORY
    if not is_valid:
        raise MisconfigurationException(f"{wrong} {name} is {ACCEPTED[name]}.")
    return value
