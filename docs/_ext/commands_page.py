"""The sections of docs/commands.md: each command of `mps-trainer` with its options, in Markdown."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from markdown_tables import code, table

from mps_trainer.cli import NAME, OneLineParser, _parser


@dataclass(frozen=True)
class Command:
    """One command: example, usage, description, arguments and options with their help, and epilog."""

    name: str
    opening: str
    usage: str
    description: str
    options: tuple[tuple[str, str], ...]
    epilog: str


def commands() -> list[Command]:
    """All commands in the order of `mps-trainer --help`, and before them the program itself, named ""."""
    parser = _parser()
    (below,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return [_command("", parser), *(_command(name, found) for name, found in below.choices.items())]


def _command(name: str, parser: OneLineParser) -> Command:
    shown = [action for action in parser._actions if not _is_hidden(action)]
    return Command(
        name,
        parser.opening,
        _usage(parser),
        parser.description or "",
        tuple((_called(action), _help(parser, action)) for action in shown),
        parser.epilog or "",
    )


def _is_hidden(action: argparse.Action) -> bool:
    """A second spelling, the help itself, or the list of commands, which this page is."""
    kinds = (argparse._HelpAction, argparse._SubParsersAction)
    return action.help == argparse.SUPPRESS or isinstance(action, kinds)


def _usage(parser: argparse.ArgumentParser) -> str:
    words = [_called(action, brief=True) for action in parser._actions if not _is_hidden(action)]
    below = ["COMMAND ..."] if parser._subparsers is not None else []
    return " ".join([parser.prog, *words, *below])


def _called(action: argparse.Action, brief: bool = False) -> str:
    """An option with what it takes; in a usage the first spelling alone, in brackets where it can be left out."""
    value = _value(action)
    if not action.option_strings:
        return f"[{value}]" if brief and action.nargs in ("?", "*", argparse.REMAINDER) else value
    flags = action.option_strings[:1] if brief else action.option_strings
    text = ", ".join(flags) + (f" {value}" if value else "")
    return f"[{text}]" if brief else text


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    if action.metavar is not None:
        return str(action.metavar)
    return "|".join(map(str, action.choices)) if action.choices else action.dest.upper()


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return parser._get_formatter()._expand_help(action)


def sections() -> str:
    return "\n\n".join(map(_section, commands()))


def _section(command: Command) -> str:
    parts = [f"## {code(f'{NAME} {command.name}'.strip())}"]
    parts.append(f"```text\n{command.opening}\nusage: {command.usage}\n```")
    parts += [" ".join(part.split()) for part in command.description.split("\n\n") if part]
    if command.options:
        parts.append(table(("Argument", "What it does"), [(code(called), said) for called, said in command.options]))
    if command.epilog:
        parts.append(f"```text\n{command.epilog}\n```")
    return "\n\n".join(parts)
