"""Hides secrets and the home folder in a report, which is shown to others."""

from __future__ import annotations

import os
import re
from collections.abc import Collection

HIDDEN = "(hidden)"

_SECRET_NAME = re.compile(r"token|key|pass(?:w|phrase)|secret|credential|auth(?!ors?(?![a-z]))", re.IGNORECASE)
# "tokenizer", and numbers of tokens as in --max_new_tokens and --include_tokens_per_second
_NO_SECRET = re.compile(
    r"tokeniz|(?P<count>(?<![^\W_])(?:max|min|num|new|unread)[\w-]*?)tokens|tokens(?=_(?:per|across)_)", re.IGNORECASE
)
_SECRET_TEXT = re.compile(
    r"\b(?:hf_|gh[pousr]_|github_pat_|sk-)[\w-]{16,}"
    # user and password of a URL, up to the last @; without a password there is no / in it
    r"|(?<=://)(?:[^\s/:]*:\S*|[^\s/]+)(?=@)"
)


def is_secret(name: str) -> bool:
    """Returns True if the name of a flag or an argument suggests a secret value."""
    return bool(_SECRET_NAME.search(_NO_SECRET.sub(lambda found: found["count"] or "", name)))


def without_secrets(text: str, secrets: Collection[str] = ()) -> str:
    """Returns `text` without `secrets`, tokens of known services, and users and passwords in URLs.

    A short secret is only found as a word of its own: `key="a"` would hide each "a".
    """
    for secret in filter(None, secrets):
        found = re.escape(secret) if len(secret) >= 8 else rf"(?<!\w){re.escape(secret)}(?!\w)"
        text = re.sub(found, HIDDEN, text)
    return _SECRET_TEXT.sub(HIDDEN, text)


def without_home(text: str) -> str:
    """Returns `text` with ~ for the home folder."""
    home = os.path.expanduser("~")
    return text.replace(home, "~") if len(home) > 1 else text
