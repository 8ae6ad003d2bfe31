"""Describes where a run comes from: command line, commit, dataset and base model."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Collection, Sequence
from typing import Any

from ..refusal import as_line
from .redaction import HIDDEN, is_secret, without_home, without_secrets

_LONGEST = 4000  # characters of a command line
_GIT_TIMEOUT = 2.0  # seconds

_ASSIGNED = re.compile(r"([-+~]{0,2}[\w.:-]+)=(.*)", re.DOTALL)  # Hydra adds with + and ++
_SWITCH = re.compile(r"--(?:use|no)[_-]")  # takes no value, or one that begins with no "--"
# options of the interpreter
_FLAGS = "-[bBdEhiIOPqRsSuvVx?]*"
_CODE = re.compile(rf"({_FLAGS}c)(.*)", re.DOTALL)
_MODULE = re.compile(rf"{_FLAGS}m.*", re.DOTALL)
_WITH_VALUE = re.compile(rf"{_FLAGS}[WX]|--check-hash-based-pycs")


def origin_of(argv: Sequence[str], folder: str, dataset: Any, config: Any, secrets: Collection[str]) -> dict[str, str]:
    """Returns the facts about the origin of a run; those that are unknown are left out.

    Args:
        argv: the command line with the interpreter, as in `sys.orig_argv`.
        folder: the working directory.
        dataset: the training dataset.
        config: the model's configuration.
        secrets: values that are hidden wherever they occur.
    """
    found = {
        "command": command_line(argv, secrets),
        "commit": commit_of(folder),
        "dataset": dataset_name(dataset),
        "base_model": without_home(as_line(str(getattr(config, "_name_or_path", None) or ""))),
    }
    return {name: text for name, text in found.items() if text}


def command_line(argv: Sequence[str], secrets: Collection[str] = ()) -> str:
    """Returns the command line as one line for a shell, without secrets and without the code after `-c`."""
    if not argv:
        return ""
    words = [os.path.basename(argv[0])]
    flag, is_next = "", False  # the flag whose values come next; True directly after it
    for word in _without_code(argv[1:]):
        assigned = _ASSIGNED.fullmatch(word)
        if flag == "-c":
            words.append("...")
        elif is_secret(flag) and (is_next or not word.startswith("--")):
            words.append(HIDDEN)
            is_next = word.startswith("--") and is_secret(word)
            continue  # a flag may have several values
        elif assigned is not None and is_secret(assigned[1]):
            words.append(f"{assigned[1]}={HIDDEN}")
        else:
            words.append(without_secrets(word, secrets))
        flag = word if word.startswith("-") and assigned is None else ""
        is_next = not _SWITCH.match(flag)
    return as_line(without_home(shlex.join(words)), _LONGEST)


def _without_code(words: Sequence[str]) -> list[str]:
    """Returns the words after the interpreter with "..." for the code of its option `-c`, as in `-uc` or `-cCODE`."""
    is_value = False
    for number, word in enumerate(words):
        if code := _CODE.fullmatch(word):
            length = 1 if code[2] else 2
            shown = [f"{code[1]}..."] if code[2] else [word, "..."]
            return [*words[:number], *shown[: len(words) - number], *words[number + length :]]
        if not is_value and (not word.startswith("-") or _MODULE.fullmatch(word)):
            break
        is_value = _WITH_VALUE.fullmatch(word) is not None
    return list(words)


def commit_of(folder: str) -> str:
    """Returns the commit that is checked out in `folder`; "" without a repository.

    git is started only inside a repository: on a Mac without the developer tools, `git` opens a dialog. `rev-parse`
    runs no hook, filter or file system monitor, as `git status` would.
    """
    command = ["git", "-C", folder, "-c", "core.fsmonitor=false", "rev-parse", "--verify", "--quiet", "HEAD"]
    try:
        if not _is_in_repository(os.path.abspath(folder)):  # raises for a working directory that was removed
            return ""
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_TIMEOUT)
    except (OSError, subprocess.SubprocessError):
        return ""
    commit = done.stdout.decode(errors="replace").strip()
    return commit if re.fullmatch(r"[0-9a-f]{40,64}", commit) else ""


def _is_in_repository(folder: str) -> bool:
    while not os.path.exists(os.path.join(folder, ".git")):
        parent = os.path.dirname(folder)
        if parent == folder:
            return False
        folder = parent
    return True


def dataset_name(dataset: Any) -> str:
    """Returns name, configuration and split of a dataset of the `datasets` library; "" for any other."""
    for _ in range(4):  # a Subset of torch has its dataset inside
        info = getattr(dataset, "info", None)
        name = getattr(info, "dataset_name", None) or getattr(info, "builder_name", None)
        if name:
            configuration = getattr(info, "config_name", None)
            parts = [name, *([configuration] if configuration not in (None, "default") else [])]
            split = getattr(dataset, "split", None)
            return as_line(", ".join([*map(str, parts), *([f"split {split}"] if split else [])]))
        dataset = getattr(dataset, "dataset", None)
    return ""
