"""`mps-trainer config`: asks for the settings of `mps-trainer launch` once, or shows them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any

from ..devices import DeviceRequest, gather_facts, resolve
from ..errors import MisconfigurationException
from ..launching.accelerate_file import accelerate_file
from ..launching.config_file import in_force, load, load_target, user_file, write
from ..launching.questions import ask_settings
from ..launching.settings import DEFAULTS, NAMES, LaunchSettings, LoadedSettings
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
        print("\n".join(_report(in_force(arguments.config_file, os.environ), os.environ)))
        return 0
    target = (
        named("--config_file", arguments.config_file) if arguments.config_file is not None else user_file(os.environ)
    )
    if target is None:
        raise MisconfigurationException(
            "There is no folder for the settings file: HOME is not set, and this user has no home folder. Name a "
            "file: `mps-trainer config --config_file FILE`, and the same for `mps-trainer launch`."
        )
    own = load_target(target)
    proposed = (_accelerates() if own is None or arguments.default else own).settings
    settings = proposed if arguments.default else _ask(proposed)
    write(settings, target)
    print("\n".join([f"Written to {target}:", *_lines(settings)]))
    return 0


def _accelerates() -> LoadedSettings:
    path = accelerate_file(os.environ)
    if path is None or not os.path.isfile(path):
        return LoadedSettings()
    found = load(path)
    print(f"Taken over from {path}: {', '.join(found.settings.given()) or 'nothing'}.")
    print("".join(f"{line}\n" for line in _ignored(found)), end="")
    return found


def _ask(proposed: LaunchSettings) -> LaunchSettings:
    facts = gather_facts()
    decision = resolve(DeviceRequest(), facts)
    print(str(decision).splitlines()[0])
    print("Press Enter for the value in brackets, or Ctrl-C to change nothing.")
    try:
        return ask_settings(decision, facts, proposed)
    except EOFError as error:
        print()
        raise MisconfigurationException(
            f"The input ended before the last answer. {UNCHANGED} `mps-trainer config --default` asks nothing."
        ) from error
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(f"interrupted. {UNCHANGED}") from interrupt


def _report(loaded: LoadedSettings, environ: Mapping[str, str]) -> list[str]:
    """Returns the settings in force, the ignored keys and the settings that the shell overrides, as lines."""
    whose = "Accelerate's " if loaded.is_accelerates else ""
    first = "No settings file, so these are the defaults:" if loaded.path is None else f"From {whose}{loaded.path}:"
    overrides = [
        f"  note: {name}={environ[name]} is set in the environment, and overrides the file."
        for name, value in loaded.settings.variables().items()
        if environ.get(name, value) != value
    ]
    return [first, *_lines(loaded.settings), *_ignored(loaded), *overrides]


def _ignored(loaded: LoadedSettings) -> list[str]:
    return [f"  not {as_line(name)}: {as_line(why)}." for name, why in loaded.ignored.items()]


def _lines(settings: LaunchSettings) -> list[str]:
    import yaml

    whole = vars(settings.over(DEFAULTS))
    texts = {name: yaml.safe_dump({name: whole[name]}).strip() for name in NAMES}
    return [f"  {text}{'' if name in settings.given() else ' (default)'}" for name, text in texts.items()]
