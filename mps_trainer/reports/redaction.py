"""Decides what a report shows of values and texts. Others read it, and no list of all secrets would be complete."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from dataclasses import fields, is_dataclass
from enum import EnumMeta
from typing import Any

from ..devices.facts import without_home
from ..utils.text import LONGEST, as_line, choice_text

NOT_SHOWN = "..."

# User and password of an address, up to the last @ (without a password there is no / in it), then query and fragment.
_USER = re.compile(r"(?<=//)(?:[^\s/:]*:\S*|[^\s/?#]+)@|(?<![^\s'\"(=])[^\s/:@'\"]+:(?!//)\S+@(?=\w)")
_QUERY = re.compile(r"(://[^\s?#;'\"<>]*)[?#;][^\s'\"<>]*")
_WORD = re.compile(r"[\w+/.~%-]{20,}=*")
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:hf_|gh[a-z]_|github_pat_|glpat-|xox[a-z]-|npm_|sk-|A[KS]IA|AIza)[\w-]*[A-Za-z0-9]{16}"
    r"|[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12})"  # the last is a UUID, a form of keys as well
)
_RUN = re.compile(r"[A-Za-z0-9+/]{16,}")
_CHANGE = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Za-z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])")

Rule = tuple[Any, bool]  # argparse's action for a flag, and True if any text is shown


def own_class(args: Any) -> type:
    """Returns the class of this package that the class of `args` is, or is made from."""
    return next(base for base in type(args).__mro__ if base.__module__.startswith("mps_trainer."))


def rules_of(args: Any) -> dict[str, Rule]:
    """Returns the rules for the flags of the arguments, and of the script's dataclasses that were given a flag."""
    from ..scripts.flags import HfArgumentParser, given

    rules, own, names = {}, own_class(args), given(sys.argv)
    named = {kind for kind in vars(sys.modules["__main__"]).values() if isinstance(kind, type) and is_dataclass(kind)}
    parsed = {kind for kind in named if names.intersection(field.name for field in fields(kind))}
    for kind in (*({*parsed, type(args)} - {own}), own):
        with contextlib.suppress(Exception):  # the parser takes no such class, so a script parsed none
            for flag, action in HfArgumentParser(kind)._option_string_actions.items():
                rules[flag] = action, kind is own and not action.dest.endswith("_token")
    return rules


def shown(value: Any, rule: Rule | None) -> Any:
    """Returns `value` in types that JSON has, with NOT_SHOWN for what the rule does not allow. None allows nothing."""
    value = getattr(value, "value", value)  # an enum has one
    if isinstance(value, (list, tuple)):
        return [shown(entry, rule) for entry in value]
    if value is None or rule is None:
        return None if value is None else NOT_SHOWN
    (action, is_text), text = rule, str(value)
    if isinstance(value, dict) and is_text:
        return {readable(str(key)): shown(entry, rule) for key, entry in value.items()}
    choices = action.choices or (action.type if isinstance(action.type, EnumMeta) else ())
    is_bool = getattr(action.type, "__name__", "") == "string_to_bool"
    if is_bool or action.type in (int, float):
        with contextlib.suppress(Exception):
            action.type(text)
            return value
    elif text in map(choice_text, choices):
        return value
    elif is_text and not choices:
        return value if isinstance(value, (int, float)) else readable(text)
    return without_home(text) if os.path.exists(text) else NOT_SHOWN


def readable(text: str, longest: int = LONGEST) -> str:
    """Returns `text` as one line for others, with ~ for the home folder.

    Addresses lose user, query and fragment. Words of 20 characters and more that begin like a token, or look as random
    as one, are cut, and so are git commits: keys of W&B have the same form. Existing paths stay.
    """
    text = _QUERY.sub(r"\1", _USER.sub("", text[: 10 * longest]))
    return as_line(without_home(_WORD.sub(_cut, text)), longest)


def _cut(found: re.Match[str]) -> str:
    """Returns NOT_SHOWN for a word whose letters, digits and capitals change as often as those of a random one."""
    word = found[0]
    runs = _RUN.findall(word)
    is_random = any(len(_CHANGE.findall(run)) >= len(run) / 5 for run in runs)
    return NOT_SHOWN if (is_random or _TOKEN.search(word)) and not os.path.exists(word.rstrip(".")) else word
