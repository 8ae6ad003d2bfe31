"""Parses flags into dataclasses and reports each error in one line."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, NoReturn

import yaml
from transformers import HfArgumentParser

from ..arguments.checks import coerce
from ..arguments.fields import declarations
from ..arguments.readers import refuse
from ..errors import MisconfigurationException
from ..utils.bounded_file import MOST_BYTES, read_bytes
from ..utils.text import did_you_mean
from .loading import errors_about

_FILES = (".json", ".yaml", ".yml")


class OneLineParser(HfArgumentParser):
    """Reports an error in one line, without the usage of a hundred flags before it. Flags are not abbreviated."""

    def __init__(self, kinds: Any, **settings: Any) -> None:
        super().__init__(kinds, **{"allow_abbrev": False, **settings})

    def error(self, message: str) -> NoReturn:
        end = "" if message.endswith(("?", ".")) else "."
        raise MisconfigurationException(f"{message}{end} `{self.prog} --help` lists the flags.")

    def parse(self, argv: list[str], **defaults: Any) -> tuple[Any, ...]:
        """Returns one object for each of the parser's dataclasses, from flags or from a file of arguments.

        Args:
            defaults: the script's own default values, by field.

        Raises:
            MisconfigurationException: for unknown flags and names, and for values that cannot be right.
        """
        self.set_defaults(**defaults)
        try:
            # report unknown words first: a dataclass would only say that a misspelled flag's value is missing
            if config := read_config(argv):
                fields = [each.name for kind in self.dataclass_types for each in dataclasses.fields(kind) if each.init]
                self._refuse_unknown([name for name in config if name not in fields], fields)
                return self.parse_dict({**defaults, **config})
            flags = [flag for flag in self._option_string_actions if flag.startswith("--")]
            self._refuse_unknown(self.parse_known_args(argv)[1], flags)
            return self.parse_args_into_dataclasses(argv, look_for_args_file=False)
        except MisconfigurationException:
            raise
        except (ValueError, TypeError) as error:
            raise MisconfigurationException(str(error)) from error

    def _refuse_unknown(self, words: list[str], known: list[str]) -> None:
        if words:
            near = did_you_mean(words[0].partition("=")[0], known)
            near = near or (" A file of arguments must be the only word." if words[0].endswith(_FILES) else "")
            self.error(f"{words[0]!r} is neither a flag nor a value of one.{near}")


def read_config(argv: list[str]) -> dict[str, Any]:
    """Returns the arguments in the JSON or YAML file that is the only word of `argv`; nothing for other words."""
    if len(argv) != 1 or not (path := argv[0]).lower().endswith(_FILES):
        return {}
    with errors_about("file of arguments", path, "Give a JSON object, or lines of YAML: `name: value`."):
        text = read_bytes(path, MOST_BYTES).decode("utf-8-sig")
        config = json.loads(text) if path.lower().endswith(".json") else yaml.safe_load(text)
        if not config or not isinstance(config, dict) or not all(isinstance(name, str) for name in config):
            raise ValueError("it is no table of names and values.")
    return config


def given(argv: list[str]) -> set[str]:
    """Returns the names of the arguments in `argv`, as the dataclasses have them."""
    return set(read_config(argv)) or {
        word[2:].split("=")[0].replace("-", "_") for word in argv if word.startswith("--")
    }


def check_types(arguments: Any) -> None:
    """Converts each field of a dataclass to the type of its hint. A file of arguments may hold any type.

    Raises:
        ValueError: for a value that has no reading as that type, and for text that is no name and no path.
    """
    kind: Any = type(arguments)
    coerce(arguments, declarations(kind))
    for each in dataclasses.fields(arguments):
        value = getattr(arguments, each.name)
        if isinstance(value, str) and (
            not value.strip() or "\0" in value or value.encode(errors="ignore").decode() != value
        ):
            raise refuse(each.name, value, "a name or a path")
