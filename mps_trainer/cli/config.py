"""`mps-trainer config`: asks for the settings of `mps-trainer launch` once, or shows them."""

from __future__ import annotations

import argparse
import os
from typing import Any

from ..arguments.model import PRECISIONS
from ..devices import ACCELERATORS, DeviceRequest, MachineFacts, gather_facts, resolve
from ..errors import MisconfigurationException
from ..launching.config_file import (
    LoadedSettings,
    accelerate_file,
    in_force,
    load_first,
    load_target,
    user_file,
    write,
)
from ..launching.processes import check_machine
from ..launching.settings import DEFAULTS, SETTINGS, Settings, variables
from ..utils.home import named
from ..utils.text import as_line


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
    one_of = command.add_mutually_exclusive_group()
    one_of.add_argument(
        "show", nargs="?", choices=["show"], metavar="show", help="print the settings in force and their file"
    )
    one_of.add_argument(
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
    file = arguments.config_file
    if arguments.show:
        _show(in_force(file, os.environ))
        return 0
    target = user_file(os.environ) if file is None else named("--config_file", file)
    if target is None:
        raise MisconfigurationException(
            "There is no folder for the settings file: HOME is not set, and this user has no home folder. Name a "
            "file: `mps-trainer config --config_file FILE`, and the same for `mps-trainer launch`."
        )
    proposed = load_target(target)
    if arguments.default or proposed.path is None:
        proposed = load_first(accelerate_file(os.environ))
        if proposed.path is not None:
            _show(proposed)
    settings = proposed.settings if arguments.default else ask_settings(gather_facts(), proposed.settings)
    write(settings, target)
    print(f"Written to {target}:")
    _print_settings(settings)
    return 0


def ask_settings(facts: MachineFacts, proposed: Settings) -> Settings:
    """Asks for each setting that matters on this machine until the answer is valid; Enter takes the proposed one.

    Raises:
        MisconfigurationException: if there is no more input.
    """
    decision = resolve(DeviceRequest(), facts)
    settings = {**DEFAULTS, **proposed}
    print(str(decision).splitlines()[0])
    print("Press Enter for the value in brackets, or Ctrl-C to change nothing.")

    def ask(name: str, hint: str = "") -> str:
        """Asks for a setting and returns the device that the settings so far choose."""
        default, words = settings[name], SETTINGS[name].words
        question = SETTINGS[name].help + (f", one of {', '.join(words)}{hint}" if words else "")
        offered = "none" if default is None else default
        if isinstance(default, bool):
            offered = "yes" if default else "no"
        while True:
            try:
                text = input(f"{question} [{offered}]: ").strip().lower()
                settings[name] = SETTINGS[name].convert(text) if text else default
                asked_later = {} if name == "num_processes" else {"num_processes": 1}
                kind = check_machine({**settings, **asked_later}, facts).type
                able = [each for each in PRECISIONS if each in ("no", *ACCELERATORS[kind].precisions(facts))]
                if name != "mixed_precision" or settings[name] in able:
                    return kind
                print(f"  {kind} does not compute in {settings[name]} here. Take {' or '.join(able)}.")
            except MisconfigurationException as error:
                print(f"  {error}")
            except (EOFError, RuntimeError) as error:  # RuntimeError: stdin was closed, as by a shell's <&-
                print()
                raise MisconfigurationException(
                    "The input ended before the last answer. Nothing was written. `mps-trainer config --default` "
                    "asks nothing."
                ) from error

    ask("device", f"; auto takes {decision.name} here")
    if ask("mixed_precision") != "mps":
        ask("num_processes")
        return settings
    ask("mps_fallback")
    ask("memory_fraction")
    print("One process, because a Mac has one GPU. `mps-trainer launch --hosts` trains on several Macs.")
    return {**settings, "num_processes": 1}


def _show(loaded: LoadedSettings) -> None:
    """Prints the settings in force, the ignored keys and the settings that the shell overrides."""
    whose = "Accelerate's " if loaded.is_accelerates else ""
    print("No settings file, so these are the defaults:" if loaded.path is None else f"From {whose}{loaded.path}:")
    _print_settings(loaded.settings)
    for name, why in loaded.ignored.items():
        print(f"  not {as_line(name)}: {as_line(why)}.")
    for name, value in variables(loaded.settings).items():
        if (shells := os.environ.get(name, value)) != value:
            print(f"  note: {name}={shells} is set in the environment, and overrides the file.")


def _print_settings(settings: Settings) -> None:
    import yaml

    for name, value in {**DEFAULTS, **settings}.items():
        print(f"  {yaml.safe_dump({name: value}).strip()}{'' if settings.get(name) is not None else ' (default)'}")
