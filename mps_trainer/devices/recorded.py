"""Reads facts of another machine from a file that `mps-trainer doctor --json` wrote there."""

from __future__ import annotations

import json
from typing import Any, TypedDict

from ..errors import MisconfigurationException
from ..utils.bounded_file import MOST_BYTES, read_bytes
from ..utils.text import shown
from ..version import __version__
from .facts import MachineFacts, parse_version
from .launchers import LAUNCHER_INTEGERS

WRITER = "mps_trainer"  # the key of the version that wrote the file


class _Report(TypedDict, total=False):
    mps_trainer: str
    facts: MachineFacts


def read_facts(path: str) -> tuple[MachineFacts, str]:
    """Returns the facts in the file at `path`, and a clause that says where they are from.

    The file has the whole output of `doctor --json`, or its "facts" alone. A key that is missing, as in a file of an
    older version, has its default. A key that is unknown is left out where a newer version wrote the file. Raises
    MisconfigurationException for one that is unknown otherwise, for a value of another type, and for a file that
    cannot be read or is none of this.
    """
    import msgspec  # doctor without --facts must work without it

    try:
        text = read_bytes(path, MOST_BYTES)
    except OSError as error:
        raise _refused(path, f"it cannot be read ({error.strerror or type(error).__name__})") from error
    except ValueError as error:
        raise _refused(path, str(error)) from error
    try:
        content = json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"it is not JSON ({error})") from error
    report: Any = content if not isinstance(content, dict) or "facts" in content else {"facts": content}
    try:
        facts = msgspec.convert(report, _Report)["facts"]
    except (msgspec.ValidationError, UnicodeError) as error:  # UTF-8 has no half of a surrogate pair, and JSON has
        raise _refused(path, f"it holds no facts ({error})") from error
    writer, keys = report.get(WRITER, ""), report["facts"]
    if "system" not in keys:
        raise _refused(path, 'it has no "system", which every machine has')
    unknown = [name for name in keys if not hasattr(facts, name)]
    if unknown and not parse_version(writer[:60], 4) > parse_version(__version__, 4):
        raise _refused(path, f"it has {shown(unknown)}, which mps_trainer {__version__} does not know")
    for name, value in vars(facts).items():
        if type(value) is int and value < (least := LAUNCHER_INTEGERS.get(name.upper(), 0)):
            raise _refused(path, f'its "{name}" is {value}, and should be at least {least}')
    source = f"in {path}" + (f", written by mps_trainer {writer}" if writer else "")
    return facts, source + (f"; left out, unknown to {__version__}: {shown(unknown)}" if unknown else "")


def _refused(path: str, why: str) -> MisconfigurationException:
    return MisconfigurationException(
        f"--facts {path}: {why}. Give it a file that `mps-trainer doctor --json > facts.json` wrote on the machine in "
        f"question."
    )
