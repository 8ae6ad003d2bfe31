"""Declares the launch settings, and the environment variables that they set.

Settings are a dictionary of those that are set, so that `{**DEFAULTS, **file, **flags}` is what a script starts with.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..arguments.fields import declarations, option
from ..arguments.model import LAUNCHED, PRECISIONS
from ..arguments.readers import check_keys, read_number, read_text_value
from ..devices import ACCELERATORS
from ..devices.facts import FALLBACK
from ..devices.watermarks import HIGH, settle_low
from ..errors import MisconfigurationException

Settings = dict[str, Any]

USE_CPU = "ACCELERATE_USE_CPU"
COMMAND = "MPS_TRAINER_COMMAND"  # see `command_of`


def _read_word(name: str, value: Any) -> str:
    return "no" if value is False else read_text_value(name, value).lower()  # YAML reads a bare `no` as false


def _read_fraction(name: str, value: Any) -> float | None:
    return None if value in ("none", "null") else read_number(name, value)


@dataclass
class _Settings:
    """The settings with the questions of `mps-trainer config`."""

    device: str = option("auto", "Device", choices=["auto", *ACCELERATORS], read=_read_word)
    mixed_precision: str = option("no", "Mixed precision", choices=PRECISIONS, read=_read_word)
    mps_fallback: bool = option(False, "Run operators without an MPS kernel on the CPU, slowly (yes or no)")
    num_processes: int = option(1, "Processes that train together", ge=1, le=1024)
    memory_fraction: float | None = option(
        None, "Limit of memory, as a share of what Metal recommends (0 to 2, or none)", ge=0, le=2, read=_read_fraction
    )


SETTINGS = declarations(_Settings)
DEFAULTS: Settings = asdict(_Settings())


def read_settings(values: Mapping[Any, Any], source: str) -> Settings:
    """Returns the settings in `source`, which errors begin with. None is not set.

    Raises:
        MisconfigurationException: for an unknown key or an invalid value.
    """
    check_keys(source, values, SETTINGS)
    try:
        found = {name: SETTINGS[name].convert(value) for name, value in values.items() if value is not None}
    except MisconfigurationException as error:
        raise MisconfigurationException(f"{source}: {error}") from error
    return {name: value for name, value in found.items() if value is not None}


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


def environment(flags: Settings, file: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns all variables of a script. Flags override the shell's variables, which override the file."""
    whole = {**variables(file), **environ, **variables(flags)}
    if whole.get(HIGH) != environ.get(HIGH):
        settle_low(whole)  # torch reads both at the same time, and a script may be without this Trainer
    return whole


def command_of(words: Sequence[str], environ: Mapping[str, str]) -> str:
    """Returns the words of `launch` or `run` up to the script, for the command that resumes a run.

    A command that starts itself again for the same script keeps the settings of the first start.
    """
    outer = environ.get(COMMAND)
    return outer if outer and shlex.split(outer)[-1] == words[-1] else shlex.join(words)
