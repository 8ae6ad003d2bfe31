"""`mps-trainer config`: asks for the settings of `mps-trainer launch` once, or shows them."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from ..devices import ACCELERATORS, DeviceRequest, MachineFacts, gather_facts, resolve
from ..errors import MisconfigurationException
from ..launching.accelerate_file import accelerate_file
from ..launching.config_file import LoadedSettings, in_force, load, load_target, user_file, write
from ..launching.processes import too_many
from ..launching.settings import ACCEPTED, DEFAULTS, PRECISIONS, Settings, typed, variables
from ..utils.home import named
from ..utils.text import as_line

UNCHANGED = "Nothing was written."


def add_parser(commands: Any) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "config",
        opening="example: mps-trainer config",
        help="ask for the settings of `launch`, or show them",
        description="Ask how to launch scripts on this machine and write the answers to a file. The questions are "
        "about device, mixed precision and processes, and on mps about the fallback and the memory limit. An "
        "existing file of `accelerate config` gives the proposed answers. `config show` prints the settings in "
        "force and their file.",
    )
    command.add_argument(
        "show", nargs="?", choices=["show"], metavar="show", help="print the settings in force and their file"
    )
    command.add_argument(
        "--default", action="store_true", help="ask nothing: take Accelerate's settings or the defaults"
    )
    command.add_argument(
        "--config_file",
        metavar="FILE",
        help="the file to write, or to show (default: mps_trainer/config.yaml in $XDG_CONFIG_HOME or ~/.config)",
    )
    return command


def run(arguments: argparse.Namespace) -> int:
    """Asks and writes, or shows; returns 0."""
    if arguments.show:
        if arguments.default:
            raise MisconfigurationException("--default writes settings, and show prints them. Leave one of them out.")
        _show(in_force(arguments.config_file, os.environ))
        return 0
    file = arguments.config_file
    target = user_file(os.environ) if file is None else named("--config_file", file)
    if target is None:
        raise MisconfigurationException(
            "There is no folder for the settings file: HOME is not set, and this user has no home folder. Name a "
            "file: `mps-trainer config --config_file FILE`, and the same for `mps-trainer launch`."
        )
    own = load_target(target)
    proposed = _accelerates() if own is None or arguments.default else own.settings
    settings = proposed if arguments.default else _ask(proposed)
    write(settings, target)
    print(f"Written to {target}:")
    _print_settings(settings)
    return 0


def _accelerates() -> Settings:
    path = accelerate_file(os.environ)
    if path is None or not os.path.isfile(path):
        return {}
    found = load(path)
    print(f"Taken over from {path}: {', '.join(found.settings) or 'nothing'}.")
    _print_ignored(found)
    return found.settings


def _ask(proposed: Settings) -> Settings:
    try:
        return ask_settings(gather_facts(), proposed)
    except EOFError as error:
        print()
        raise MisconfigurationException(
            f"The input ended before the last answer. {UNCHANGED} `mps-trainer config --default` asks nothing."
        ) from error
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(f"interrupted. {UNCHANGED}") from interrupt


def ask_settings(facts: MachineFacts, proposed: Settings) -> Settings:
    """Asks for each setting that matters on this machine until the answer is valid; Enter takes the proposed one.

    Raises:
        EOFError: if there is no more input.
    """
    decision = resolve(DeviceRequest(), facts)
    settings = {**DEFAULTS, **proposed}
    print(str(decision).splitlines()[0])
    print("Press Enter for the value in brackets, or Ctrl-C to change nothing.")

    def kind() -> str:
        return decision.type if settings["device"] == "auto" else settings["device"]

    def ask(name: str, question: str) -> None:
        default = settings[name]
        offered = "none" if default is None else default
        if isinstance(default, bool):
            offered = "yes" if default else "no"
        if sys.stdin is None:  # closed before the start, as by a shell's <&-
            raise EOFError
        while True:
            text = input(f"{question} [{offered}]: ").strip()
            try:
                settings[name] = typed(name, text) if text else default
                obstacle = _obstacle(name, settings[name], kind(), facts)
            except MisconfigurationException as error:
                obstacle = str(error)
            if obstacle is None:
                return
            print(f"  {obstacle}")

    ask("device", f"Device, {ACCEPTED['device']}; auto takes {decision.name} here")
    ask("mixed_precision", f"Mixed precision, {ACCEPTED['mixed_precision']}")
    if kind() != "mps":
        ask("num_processes", "Processes that train together")
        return settings
    ask("mps_fallback", "Run operators without an MPS kernel on the CPU, slowly (yes or no)")
    ask("memory_fraction", "Limit of memory, as a share of what Metal recommends (0 to 2, or none)")
    print("One process, because a Mac has one GPU. `mps-trainer launch --hosts` trains on several Macs.")
    return {**settings, "num_processes": 1}


def _obstacle(name: str, value: Any, kind: str, facts: MachineFacts) -> str | None:
    """Returns why a valid value cannot be used on this machine, with training on a device of this kind; or None."""
    if name == "device" and value != "auto" and (found := ACCELERATORS[value].why_not(facts)) is not None:
        return f"{value} cannot run here: {found.why}. To fix it: {found.remedy}."
    if name == "mixed_precision":
        able = [each for each in PRECISIONS if each == "no" or each in ACCELERATORS[kind].precisions(facts)]
        if value not in able:
            return f"{kind} does not compute in {value} here. Take {' or '.join(able)}."
    return too_many(value, kind, facts) if name == "num_processes" else None


def _show(loaded: LoadedSettings) -> None:
    """Prints the settings in force, the ignored keys and the settings that the shell overrides."""
    whose = "Accelerate's " if loaded.is_accelerates else ""
    print("No settings file, so these are the defaults:" if loaded.path is None else f"From {whose}{loaded.path}:")
    _print_settings(loaded.settings)
    _print_ignored(loaded)
    for name, value in variables(loaded.settings).items():
        if (shells := os.environ.get(name, value)) != value:
            print(f"  note: {name}={shells} is set in the environment, and overrides the file.")


def _print_ignored(loaded: LoadedSettings) -> None:
    for name, why in loaded.ignored.items():
        print(f"  not {as_line(name)}: {as_line(why)}.")


def _print_settings(settings: Settings) -> None:
    import yaml

    for name, value in {**DEFAULTS, **settings}.items():
        print(f"  {yaml.safe_dump({name: value}).strip()}{'' if settings.get(name) is not None else ' (default)'}")
