"""Names the argument of models and layers that holds the keys and values of earlier tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CACHES = ("cache", "past_key_values")  # transformers has the first since 5.24


def has_cache(arguments: Mapping[str, Any]) -> bool:
    """Returns True if the arguments of a model or layer hold the keys and values of earlier tokens."""
    return any(arguments.get(name) is not None for name in CACHES)
