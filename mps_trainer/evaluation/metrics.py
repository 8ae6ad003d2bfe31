"""Formats metrics: plain numbers, and prefixed names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..utils.numbers import plain
from ..utils.text import shown


def named_metrics(
    metrics: Mapping[Any, Any] | None, prefix: str, loss: float | None, preparation_time: float | None
) -> dict[str, Any]:
    """Returns metrics as plain numbers under names that begin with `prefix`, with the mean loss among them.

    Raises:
        TypeError: if `metrics` is no dictionary, which compute_metrics has to return.
    """
    if metrics is not None and not isinstance(metrics, Mapping):
        raise TypeError(
            f"compute_metrics returned {shown(metrics)} of type {type(metrics).__name__}, and it has to return a "
            "dictionary of metrics by name, such as {'accuracy': 0.9}."
        )
    named: dict[str, Any] = {str(name): plain(value) for name, value in (metrics or {}).items()}
    if loss is not None:
        named[f"{prefix}_loss"] = loss
    if preparation_time is not None:
        named[f"{prefix}_model_preparation_time"] = preparation_time
    begins = f"{prefix}_"
    ready = {name: value for name, value in named.items() if name.startswith(begins)}
    return {**ready, **{begins + name: value for name, value in named.items() if name not in ready}}


def as_cell(value: Any) -> Any:
    """Returns `value` as a table can show it: a number, or one line of text."""
    return value if isinstance(value, (int, float)) else " ".join(str(value).split())
