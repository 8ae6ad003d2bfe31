"""Columns of a dataset that the model's forward() takes; the rest never reach it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)


def signature_columns(model: Any, label_names: list[str]) -> list[str]:
    """Names that may be columns of a batch for `model`: the arguments of forward(), and the labels' names."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return [*inspect.signature(base.forward).parameters, "label", "label_ids", *label_names]


def without_unused_columns(dataset: Any, columns: list[str], model_name: str) -> Any:
    """`dataset`, a `datasets.Dataset`, with just those of its columns that are in `columns`.

    Raises:
        ValueError: if no column is left.
    """
    unused = [name for name in dataset.column_names if name not in columns]
    if len(unused) == len(dataset.column_names):
        raise ValueError(
            f"None of the dataset's columns ({', '.join(unused)}) is an argument of {model_name}.forward "
            f"({', '.join(columns)}), so nothing would reach the model. Rename the columns, or set "
            "remove_unused_columns=False if the data collator makes the model's inputs from them."
        )
    if unused:
        logger.info("Columns that %s.forward does not take are left out: %s.", model_name, ", ".join(unused))
    return dataset.remove_columns(unused)


class KeepColumns:
    """Wraps a collator for datasets whose items are dictionaries: items lose the keys not in `columns`."""

    def __init__(self, collator: Callable, columns: list[str]) -> None:
        self.collator = collator
        self.columns = frozenset(columns)

    def __call__(self, items: list[Any]) -> Any:
        return self.collator([self._keep(item) for item in items])

    def _keep(self, item: Any) -> Any:
        if not isinstance(item, dict):
            return item
        return {name: value for name, value in item.items() if name in self.columns}
