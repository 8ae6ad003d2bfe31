"""Decides what a report shows of values and texts. Others read it, and no list of all secrets would be complete."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import traceback
from dataclasses import fields, is_dataclass
from enum import EnumMeta
from typing import Any
from urllib.parse import unquote

from ..devices.facts import without_home
from ..errors import AnotherProcessFailedError, explanation_of
from ..utils.text import LONGEST, as_line, choice_text

NOT_SHOWN = "..."

_PACKAGE = __name__.partition(".")[0]
_FOLDER = os.path.dirname(os.path.dirname(__file__)) + os.sep
_INSTALLED = re.compile(r"[\\/](?:site|dist)-packages[\\/]|^<")
_LONGEST_WORD, _LONGEST_CAPITALS = 20, 14  # internationalization, CONFIGURATION

# User and password of an address, up to the last @ (without a password there is no / in it), then query and fragment.
_USER = re.compile(r"(?<=//)(?:[^\s/:]*:\S*|[^\s/?#]+)@|(?<![^\s'\"(=])[^\s/:@'\"]+:(?!//)\S+@(?=\w)")
_QUERY = re.compile(r"(://[^\s?#;'\"<>]*)[?#;][^\s'\"<>]*")
_ENCODED = re.compile(r"\S*%(?:25)*3A%(?:25)*2F\S*", re.IGNORECASE)  # an address inside another one
_WORD = re.compile(r"(?P<checksum>sha256[ :=]+[0-9a-f]{64}\b)|[\w+/.~%-]{20,}=*")
_PART = re.compile(r"[A-Za-z0-9]+")
_PIECE = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")  # Data, Collator, For, Seq, 2, Seq

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


def error_text(error: BaseException) -> str:
    """Returns the text for an error in a report: its class, its place and this package's explanation.

    The report shows an error's own text only if this package wrote it. Others may quote an address with a password, a
    header with a key, or a row of the data.
    """
    name, explanation = type(error).__name__, explanation_of(error)
    is_own = type(error).__module__.startswith(f"{_PACKAGE}.") and not isinstance(error, AnotherProcessFailedError)
    text = f"{name}: {error}" if is_own else f"{name}{_place(error)}. Its text is in the terminal, not in the report."
    return readable(text if explanation is None else f"{text} {explanation}")


def _place(error: BaseException) -> str:
    """Returns the innermost line of the script, or of a module beside it, in an error's traceback; "" if none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if not each.filename.startswith(_FOLDER) and not _INSTALLED.search(each.filename)]
    if not (found := own or frames):
        return ""
    return f" at {os.sep.join(found[-1].filename.split(os.sep)[-2:])}:{found[-1].lineno}"


def readable(text: str, longest: int = LONGEST) -> str:
    """Returns `text` as one line for others, with ~ for the home folder.

    Addresses lose user, query and fragment. Words of 20 characters or more are cut if a part, as in a key, is not made
    of words or numbers. Git commits are cut too, because keys of W&B have the same form. Existing paths stay.
    """
    text = _ENCODED.sub(_decoded, text[: 10 * longest])
    text = _QUERY.sub(r"\1", _USER.sub("", text))
    return as_line(without_home(_WORD.sub(_cut, text)), longest)


def _decoded(found: re.Match[str]) -> str:
    word = found[0]
    while (plain := unquote(word)) != word:
        word = plain
    return word


def _cut(found: re.Match[str]) -> str:
    word = found[0]
    is_shown = (
        found["checksum"] or all(map(_is_made_of_words, _PART.findall(word))) or os.path.exists(word.rstrip("."))
    )
    return word if is_shown else NOT_SHOWN


def _is_made_of_words(part: str) -> bool:
    """Returns True for few pieces, none longer than a word, or a name that a library exports.

    Only 1 of 2,000 random texts of 22 letters and digits has so few pieces.
    """
    if re.fullmatch("[a-z0-9]{1,8}", part):  # such as a run's number or a version
        return True
    pieces = _PIECE.findall(part)
    is_mixed = part.upper() != part != part.lower()
    is_short = len(pieces) <= max(3, len(part) // 5 if is_mixed else 0)
    is_word = all(len(piece) <= (_LONGEST_CAPITALS if piece.isupper() else _LONGEST_WORD) for piece in pieces)
    return (is_short and is_word) or part in _exported()


@functools.cache
def _exported() -> frozenset[str]:
    """Returns the names of transformers and torch, such as AutoModelForSeq2SeqLM."""
    import torch
    import transformers

    return frozenset([*dir(transformers), *dir(torch), *dir(torch.nn)])
