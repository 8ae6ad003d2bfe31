"""`mps-trainer config`: asks for the settings of `mps-trainer launch` once, or shows them."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from ..devices import DeviceRequest, gather_facts, resolve
from ..errors import MisconfigurationException
from ..launching.accelerate_file import accelerate_file
from ..launching.config_file import check_target, file_to_write, in_force, load, write
from ..launching.environment import set_aside
from ..launching.questions import questionnaire
from ..launching.settings import DEFAULTS, NAMES, InForce, LaunchSettings
from ..utils.refusal import WRONG_INPUT
from ..utils.text import as_line
from .completion import completes

UNCHANGED = "Nothing was written."


def add_parser(commands: Any) -> None:
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
    completes(
        command.add_argument(
            "--config_file",
            metavar="FILE",
            help="the file to write, or to show (default: mps_trainer/config.yaml in $XDG_CONFIG_HOME or ~/.config)",
        )
    )
    command.set_defaults(run=run, failure=WRONG_INPUT)


def run(arguments: argparse.Namespace) -> int:
    """Asks and writes, or shows; returns 0."""
    if arguments.show:
        if arguments.default:
            raise MisconfigurationException("--default writes settings, and show prints them. Leave one of them out.")
        print("\n".join(shown(in_force(arguments.config_file, os.environ), os.environ)))
        return 0
    target = file_to_write(arguments.config_file, os.environ)
    check_target(target)
    if arguments.default:
        chosen = _accelerates()
        settings = chosen.settings
    else:
        chosen = load(target) if os.path.exists(target) else _accelerates()
        settings = _ask(chosen)
    write(settings, target)
    print(f"Written to {target}:")
    print("\n".join(_lines(settings)))
    return 0


def _accelerates() -> InForce:
    path = accelerate_file(os.environ)
    if path is None or not os.path.isfile(path):
        return InForce()
    found = load(path)
    print(f"Taken over from {path}: {', '.join(found.settings.given()) or 'nothing'}.")
    for line in _left(found):
        print(line)
    return found


def _ask(proposed: InForce) -> LaunchSettings:
    facts = gather_facts()
    decision = resolve(DeviceRequest(), facts)
    print(str(decision).splitlines()[0])
    print("Press Enter for the value in brackets, or Ctrl-C to change nothing.")
    try:
        return questionnaire(decision, facts, proposed.settings, _answer, print)
    except EOFError as error:
        print()
        raise MisconfigurationException(
            f"The input ended before the last answer. {UNCHANGED} `mps-trainer config --default` asks nothing."
        ) from error
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(f"interrupted. {UNCHANGED}") from interrupt


def _answer(prompt: str) -> str:
    if sys.stdin is None:  # closed before the start, as by a shell's <&-
        raise EOFError
    return input(prompt)


def shown(chosen: InForce, environ: Any) -> list[str]:
    """Returns the settings in force, the keys not taken over and the settings set aside, as lines."""
    whose = "Accelerate's " if chosen.is_accelerates else ""
    lines = ["No settings file, so these are the defaults:" if chosen.path is None else f"From {whose}{chosen.path}:"]
    lines += _lines(chosen.settings)
    lines += _left(chosen)
    for name, value in set_aside(chosen.settings, environ).items():
        lines.append(f"  note: {name}={value} is set in the environment, and overrides the file.")
    return lines


def _left(chosen: InForce) -> list[str]:
    return [f"  not {as_line(name)}: {as_line(why)}." for name, why in chosen.left.items()]


def _lines(settings: LaunchSettings) -> list[str]:
    import yaml

    whole = settings.over(DEFAULTS)
    lines = []
    for name in NAMES:
        text = yaml.safe_dump({name: getattr(whole, name)}).strip()
        lines.append(f"  {text}" + ("" if name in settings.given() else " (default)"))
    return lines
