"""Converts settings to the environment variables of a script. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ..arguments.model import LAUNCHED
from ..devices.facts import FALLBACK
from ..devices.watermarks import HIGH, settle_low
from .settings import LaunchSettings

USE_CPU = "ACCELERATE_USE_CPU"


def variables(settings: LaunchSettings) -> dict[str, str]:
    """Returns the environment variables of the settings, for torch, a Trainer and Accelerate.

    `num_processes` has none, and neither has a GPU by its name: a script takes the one that is there.
    """
    found = {}
    if settings.device == "cpu":
        found[USE_CPU] = "true"
    if settings.mixed_precision is not None:
        found[LAUNCHED] = settings.mixed_precision
    if settings.mps_fallback:
        found[FALLBACK] = "1"
    if settings.memory_fraction is not None:
        found[HIGH] = f"{settings.memory_fraction:g}"
    return found


def environment(flags: LaunchSettings, file: LaunchSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns all variables of a script. Flags override the shell's variables, which override the file."""
    whole = {**variables(file), **environ, **variables(flags)}
    if whole.get(HIGH) != environ.get(HIGH):
        settle_low(whole)  # torch reads both at the same time, and a script may be without this Trainer
    return whole


def set_aside(file: LaunchSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the shell's variables that override the file with another value."""
    return {name: environ[name] for name, value in variables(file).items() if environ.get(name, value) != value}
