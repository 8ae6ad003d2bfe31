"""Describes where a run comes from: command line, commit, dataset and base model."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..devices.facts import without_home
from ..utils.text import as_line
from .redaction import NOT_SHOWN, Rule, readable, shown

_LONGEST = 4000  # characters of a command line
_GIT_TIMEOUT = 2.0  # seconds

_FLAG = re.compile(r"--?[A-Za-z]?|--[\w.-]+")
_NUMBER = re.compile(r"-[\d.]+(?:[eE][-+]?\d+)?")


def origin_of(
    argv: Sequence[str], folder: str, dataset: Any, config: Any, rules: Mapping[str, Rule]
) -> dict[str, str]:
    """Returns the facts about the origin of a run; those that are unknown are left out.

    Args:
        argv: the script, or -m and the module, and its words as in `sys.argv`.
        config: of the model.
    """
    found = {
        "command": command_line(argv, rules),
        "commit": commit_of(folder),
        "dataset": dataset_name(dataset),
        "base_model": readable(str(getattr(config, "_name_or_path", None) or "")),
    }
    return {name: text for name, text in found.items() if text}


def command_line(argv: Sequence[str], rules: Mapping[str, Rule]) -> str:
    """Returns the command as one line for a shell, with NOT_SHOWN for values that are not shown."""
    script, rule = 2 if argv[:1] == ["-m"] else 1, None
    words = ["python", *argv[:script]]
    for word in argv[script:]:
        flag, equals, value = word.partition("=")
        if not word.startswith("-") or _NUMBER.fullmatch(word):
            words.append(str(shown(word, rule)))
            rule = rule if rule is not None and rule[0].nargs in ("+", "*") else None
        else:
            rule = rules.get(flag)
            name = flag if rule is not None or _FLAG.fullmatch(readable(flag)) else flag[:2] + NOT_SHOWN
            words.append(f"{name}={shown(value, rule)}" if equals else name)
            rule = None if equals else rule
    return as_line(without_home(shlex.join(words)), _LONGEST)


def commit_of(folder: str) -> str:
    """Returns the commit that is checked out in `folder`; "" without a repository.

    git is started only inside a repository: on a Mac without the developer tools, `git` opens a dialog. `rev-parse`
    runs no hook, filter or file system monitor, as `git status` would.
    """
    command = ["git", "-C", folder, "-c", "core.fsmonitor=false", "rev-parse", "--verify", "--quiet", "HEAD"]
    try:
        inside = Path(folder).absolute()  # raises for a working directory that was removed
        if not any((parent / ".git").exists() for parent in (inside, *inside.parents)):
            return ""
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_TIMEOUT)
    except (OSError, subprocess.SubprocessError):
        return ""
    commit = done.stdout.decode(errors="replace").strip()
    return commit if re.fullmatch(r"[0-9a-f]{40,64}", commit) else ""


def dataset_name(dataset: Any) -> str:
    """Returns name, configuration and split of a dataset of the `datasets` library; "" for any other."""
    for _ in range(4):  # a Subset of torch has its dataset inside
        info = getattr(dataset, "info", None)
        name = getattr(info, "dataset_name", None) or getattr(info, "builder_name", None)
        if name:
            configuration = getattr(info, "config_name", None)
            parts = [name, *([configuration] if configuration not in (None, "default") else [])]
            split = getattr(dataset, "split", None)
            return readable(", ".join([*map(str, parts), *([f"split {split}"] if split else [])]))
        dataset = getattr(dataset, "dataset", None)
    return ""
