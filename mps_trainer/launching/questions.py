"""Asks the questions of `mps-trainer config` that matter on this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ..devices import ACCELERATORS, Decision, MachineFacts
from ..errors import MisconfigurationException
from .processes import too_many
from .settings import DEFAULTS, DEVICES, PRECISIONS, LaunchSettings, typed


def ask_settings(decision: Decision, facts: MachineFacts, proposed: LaunchSettings) -> LaunchSettings:
    """Asks for each setting that matters on this machine until the answer is valid.

    Args:
        decision: the device of "auto" here.
        proposed: the settings that an empty answer takes.

    Raises:
        EOFError: if there is no more input.
    """
    settings = proposed.over(DEFAULTS)

    def ask(name: str, question: str, check: Callable[[Any], str | None] = lambda value: None) -> Any:
        default = getattr(settings, name)
        offered = "none" if default is None else str(default)
        if isinstance(default, bool):
            offered = "yes" if default else "no"
        if sys.stdin is None:  # closed before the start, as by a shell's <&-
            raise EOFError
        while True:
            text = input(f"{question} [{offered}]: ").strip()
            try:
                value = typed(name, text) if text else default
                objection = check(value)
            except MisconfigurationException as error:
                objection = str(error)
            if objection is None:
                return value
            print(f"  {objection}")

    device = ask(
        "device",
        f"Device, one of {', '.join(DEVICES)}; auto takes {decision.name} here",
        lambda value: _cannot_run(value, facts),
    )
    kind = decision.type if device == "auto" else device
    precision = ask(
        "mixed_precision",
        f"Mixed precision, one of {', '.join(PRECISIONS)}",
        lambda value: _cannot_compute(value, kind, facts),
    )
    if kind == "mps":
        fallback = ask("mps_fallback", "Run operators without an MPS kernel on the CPU, slowly (yes or no)")
        fraction = ask("memory_fraction", "Limit of memory, as a share of what Metal recommends (0 to 2, or none)")
        print("One process, because a Mac has one GPU. `mps-trainer launch --hosts` trains on several Macs.")
        return LaunchSettings(device, precision, fallback, 1, fraction)
    count = ask("num_processes", "Processes that train together", lambda value: too_many(value, kind, facts))
    return LaunchSettings(device, precision, settings.mps_fallback, count, settings.memory_fraction)


def _cannot_run(device: str, facts: MachineFacts) -> str | None:
    obstacle = None if device == "auto" else ACCELERATORS[device].why_not(facts)
    return None if obstacle is None else f"{device} cannot run here: {obstacle.cause}. To fix it: {obstacle.remedy}."


def _cannot_compute(precision: str, kind: str, facts: MachineFacts) -> str | None:
    able = [name for name in PRECISIONS if name == "no" or name in ACCELERATORS[kind].precisions(facts)]
    return None if precision in able else f"{kind} does not compute in {precision} here. Take {' or '.join(able)}."
