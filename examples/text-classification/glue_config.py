"""Reads a file of arguments, JSON or YAML, strictly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from glue_errors import UserError

from mps_trainer.utils.bounded_file import MOST_BYTES, read_text
from mps_trainer.utils.text import sentence

SUFFIXES = (".json", ".yaml", ".yml")


def is_config(word: str) -> bool:
    return word.lower().endswith(SUFFIXES)


def read_config(path: Path) -> dict[str, Any]:
    """Returns the arguments in `path`, by name.

    Raises:
        UserError: for a file that cannot be read, is no table of names and values, or has a name twice.
    """
    read = _read_json if path.suffix.lower() == ".json" else _read_yaml
    try:
        config = read(read_text(path, MOST_BYTES, "utf-8-sig"))
    except UserError as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} cannot be read: it is not UTF-8 text ({error}). Save it as UTF-8.") from error
    except RecursionError as error:
        raise UserError(f"{path} cannot be read: it is nested too deeply for a table of arguments.") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {sentence(error)}") from error
    if not isinstance(config, dict) or not all(isinstance(name, str) for name in config):
        raise UserError(f"{path} is not a configuration: it must be a table of argument names and values.")
    return config


def _read_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_without_repetition)


def _without_repetition(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    table: dict[Any, Any] = {}
    for name, value in pairs:
        if name in table:
            raise UserError(f"{name!r} is given twice. Leave one of them out.")
        table[name] = value
    return table


def _read_yaml(text: str) -> Any:
    import yaml

    from mps_trainer.utils.yaml_loader import BoundedLoader

    class Loader(BoundedLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            names = [self.construct_object(key, deep=True) for key, _ in node.value]
            _without_repetition([(str(name), None) for name in names])
            return super().construct_mapping(node, deep=deep)

    try:
        return yaml.load(text, Loader=Loader)
    except yaml.YAMLError as error:
        raise UserError(sentence(error)) from error
