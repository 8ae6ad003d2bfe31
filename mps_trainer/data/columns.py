"""Removes the columns of a dataset that the model's forward() does not take."""

from __future__ import annotations

import inspect
import logging
import sys
from typing import Any

from transformers.trainer_utils import RemoveColumnsCollator

from ..model.introspection import base_model

logger = logging.getLogger(__name__)


def signature_columns(model: Any, label_names: list[str]) -> list[str]:
    """Returns the names that columns of a batch may have: forward()'s arguments and the labels' names."""
    arguments = list(inspect.signature(base_model(model).forward).parameters)
    return list(dict.fromkeys([*arguments, "label", "label_ids", *label_names]))


class ColumnsCollator(RemoveColumnsCollator):
    """Removes from each example what the model does not take.

    transformers compares the columns of each example with the names twice. Here one that loses none is only copied.
    """

    def _remove_columns(self, feature: Any) -> Any:
        if type(feature) is dict and all(name in self.signature_columns for name in feature):
            return feature.copy()
        return super()._remove_columns(feature)


def is_table(dataset: Any) -> bool:
    """Returns True for a `datasets.Dataset`, not a stream: its columns can be dropped before rows are read."""
    datasets = sys.modules.get("datasets")  # without it loaded there is no Dataset
    return datasets is not None and isinstance(dataset, datasets.Dataset)


def name_parts(dataset: Any) -> list[str]:
    """Returns name, configuration and split of a dataset of the `datasets` library; [] for any other."""
    info = getattr(dataset, "info", None)
    if not (name := getattr(info, "dataset_name", None) or getattr(info, "builder_name", None)):
        return []
    configuration, split = getattr(info, "config_name", None), getattr(dataset, "split", None)
    configurations = [] if configuration in (None, "default", name) else [str(configuration)]
    return [str(name), *configurations, *([] if split is None else [f"split {split}"])]


def without_unused_columns(dataset: Any, columns: list[str], model_name: str, description: str | None = None) -> Any:
    """Returns `dataset`, a `datasets.Dataset`, with only those of its columns that are in `columns`.

    Args:
        description: what the dataset is for, in the message that names the removed columns.

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
        where = "" if description is None else f" of the {description} set"
        logger.info("Ignored columns%s, which %s.forward does not take: %s.", where, model_name, ", ".join(unused))
    return dataset.remove_columns(unused)
