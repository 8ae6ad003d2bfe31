"""Parses flags into dataclasses and reports each error in one line."""

from __future__ import annotations

import argparse
import dataclasses
import typing
from typing import Any, NoReturn

from transformers import HfArgumentParser

from ..arguments.checks import coerce, refuse
from ..errors import MisconfigurationException
from ..utils.text import did_you_mean


class OneLineParser(HfArgumentParser):
    """Reports an error in one line, without the usage of a hundred flags before it."""

    def error(self, message: str) -> NoReturn:
        raise MisconfigurationException(f"{message.rstrip('.')}. `{self.prog} --help` lists the flags.")

    def parse(self, argv: list[str]) -> tuple[Any, ...]:
        """Returns one object for each of the parser's dataclasses.

        Raises:
            MisconfigurationException: for unknown flags, and for values that cannot be right.
        """
        try:
            *arguments, unknown = self.parse_args_into_dataclasses(
                argv, return_remaining_strings=True, look_for_args_file=False
            )
        except MisconfigurationException:
            raise
        except (ValueError, TypeError) as error:
            raise MisconfigurationException(str(error)) from error
        if unknown:
            raise MisconfigurationException(unknown_flag(self, unknown[0]))
        return tuple(arguments)


def unknown_flag(parser: argparse.ArgumentParser, word: str) -> str:
    """Returns the message for a word of the command line that `parser` does not know."""
    flags = [flag for flag in parser._option_string_actions if flag.startswith("--")]
    near = did_you_mean(word.partition("=")[0], flags) if word.startswith("--") else ""
    return f"{word!r} is neither a flag nor a value of one.{near} `{parser.prog} --help` lists the flags."


def given(argv: list[str]) -> set[str]:
    """Returns the names of the typed flags, as the dataclasses have them."""
    return {word[2:].split("=")[0].replace("-", "_") for word in argv if word.startswith("--")}


def check_types(arguments: Any) -> None:
    """Converts each field of a dataclass to the type of its hint. A file of arguments may hold any type.

    Raises:
        ValueError: for a value that has no reading as that type, and for text that is no name and no path.
    """
    coerce(arguments, typing.get_type_hints(type(arguments)))
    for each in dataclasses.fields(arguments):
        value = getattr(arguments, each.name)
        if isinstance(value, str) and (not value.strip() or "\0" in value or not _encodable(value)):
            raise refuse(each.name, value, "a name or a path")


def _encodable(text: str) -> bool:
    try:
        return bool(text.encode())
    except UnicodeEncodeError:
        return False
