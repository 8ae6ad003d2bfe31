"""Reads facts of another machine from a file that `mps-trainer doctor --json` wrote there."""

from __future__ import annotations

import json
import re
import typing
from dataclasses import dataclass
from typing import Any

from ..errors import MisconfigurationException
from ..utils.bounded_file import MOST_BYTES, read_text
from ..utils.text import as_line
from ..version import __version__
from .facts import LAUNCHER_INTEGERS, MachineFacts

WRITER = "mps_trainer"  # the key of the version that wrote the file
_NAMES = {bool: "true or false", int: "a whole number", str: "text", type(None): "null", dict: "texts by name"}


@dataclass(frozen=True)
class Recorded:
    """Facts from a file.

    `writer` is the version that wrote it, "" if the file does not say; `unknown` are keys of a newer one, left out.
    """

    facts: MachineFacts
    writer: str = ""
    unknown: tuple[str, ...] = ()


def read_facts(path: str) -> Recorded:
    """Returns the facts in the file at `path`: the whole output of `doctor --json`, or its "facts" alone.

    A key that is missing, as in a file of an older version, has its default. A key that is unknown is left out where a
    newer version wrote the file. Raises MisconfigurationException for one that is unknown otherwise, for a value of
    another type, and for a file that cannot be read or is none of this.
    """
    content = _content(path)
    report = content if "facts" in content else {"facts": content}
    writer = report.get(WRITER, "")
    if not isinstance(writer, str):
        raise _refused(
            path, f'its "{WRITER}" is {as_line(json.dumps(writer), 60)}, and should be the version that wrote it'
        )
    data = report["facts"]
    if not isinstance(data, dict):
        raise _refused(path, f'its "facts" are {_kind(data)}, and should be an object')
    if "system" not in data:
        raise _refused(path, 'it has no "system", which every machine has')
    kinds = typing.get_type_hints(MachineFacts)
    unknown = tuple(name for name in data if name not in kinds)
    if unknown and not _release(writer) > _release(__version__):
        raise _refused(path, f"it has {names(unknown)}, which mps_trainer {__version__} does not know")
    known = {name: value for name, value in data.items() if name in kinds}
    for name, value in known.items():
        _check(path, name, value, kinds[name])
    return Recorded(MachineFacts.from_dict(known), writer, unknown)


def _content(path: str) -> dict[str, Any]:
    try:
        text = read_text(path, MOST_BYTES, "utf-8-sig")
    except FileNotFoundError as error:
        raise _refused(path, "there is no such file") from error
    except OSError as error:
        raise _refused(path, f"it cannot be read ({error.strerror or type(error).__name__})") from error
    except UnicodeDecodeError as error:
        raise _refused(path, f"it is not JSON ({error})") from error
    except ValueError as error:
        raise _refused(path, str(error)) from error
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"it is not JSON ({error})") from error
    if not isinstance(content, dict):
        raise _refused(path, f"it holds {_kind(content)}, and should hold an object")
    return content


def _check(path: str, name: str, value: Any, kind: Any) -> None:
    options = typing.get_args(kind) if typing.get_origin(kind) is not dict else ()
    accepted = [typing.get_origin(option) or option for option in (options or (kind,))]
    has_texts = type(value) is not dict or all(type(text) is str for text in value.values())
    if type(value) not in accepted or not has_texts:
        should = " or ".join(_NAMES[option] for option in accepted)
        raise _refused(path, f'its "{name}" is {as_line(json.dumps(value), 60)}, and should be {should}')
    least = LAUNCHER_INTEGERS.get(name.upper(), 0)
    if type(value) is int and value < least:
        raise _refused(path, f'its "{name}" is {as_line(json.dumps(value), 60)}, and should be at least {least}')


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"\d{1,6}(\.\d{1,6})*", version, re.ASCII)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def names(keys: tuple[str, ...]) -> str:
    """Returns the first few names, quoted, and how many more there are."""
    shown = [f'"{key[:60]}"' for key in keys[:5]]
    return ", ".join(shown) + (f" and {len(keys) - 5} more" if len(keys) > 5 else "")


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "a text", type(None): "null"}.get(type(value), "a single value")


def _refused(path: str, why: str) -> MisconfigurationException:
    return MisconfigurationException(
        f"--facts {path}: {why}. Give it a file that `mps-trainer doctor --json > facts.json` wrote on the machine in "
        f"question."
    )
