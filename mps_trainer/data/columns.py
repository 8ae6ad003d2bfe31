"""Removes the columns of a dataset that the model's forward() does not take."""

from __future__ import annotations

import inspect
import logging
import sys
from typing import Any, Protocol

from transformers.trainer_utils import RemoveColumnsCollator

from ..model.introspection import base_model
from .missing_columns import ModelColumns

logger = logging.getLogger(__name__)


class TrainerWithColumns(Protocol):
    """Names what the choice of columns uses of a Trainer, in transformers' names."""

    args: Any
    model: Any
    label_names: list[str]
    _signature_columns: list[str] | None

    def _set_signature_columns_if_needed(self) -> None: ...


def signature_columns(model: Any, label_names: list[str]) -> list[str]:
    """Returns the names that columns of a batch may have: forward()'s arguments and the labels' names."""
    arguments = list(inspect.signature(base_model(model).forward).parameters)
    return list(dict.fromkeys([*arguments, "label", "label_ids", *label_names]))


def columns_of(trainer: TrainerWithColumns) -> list[str]:
    """Returns the names of the columns that may reach the Trainer's model. A subclass may set them."""
    trainer._set_signature_columns_if_needed()
    return trainer._signature_columns or []


def model_columns_of(trainer: TrainerWithColumns) -> ModelColumns:
    """Returns the columns that may reach the Trainer's model, and the reasons why others do not."""
    kept = columns_of(trainer) if trainer.args.remove_unused_columns else None
    return ModelColumns(trainer.model, kept, trainer.label_names)


class ColumnRemover(RemoveColumnsCollator):
    """Gives a collator only the columns that the model takes.

    Attributes:
        example: the last example before columns were removed, which explains what a collator or a model misses.
    """

    example: Any = None

    def _remove_columns(self, feature: Any) -> Any:
        self.example = feature
        if type(feature) is dict and all(name in self.signature_columns for name in feature):
            return feature.copy()  # transformers compares the names twice
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


def without_unused_columns(dataset: Any, columns: ModelColumns, description: str | None = None) -> Any:
    """Returns `dataset`, a `datasets.Dataset`, with only the columns that may reach the model.

    Args:
        description: what the dataset is for, in the message that names the removed columns.

    Raises:
        ValueError: if no column is left.
    """
    unused = columns.removed(dataset.column_names)
    if len(unused) == len(dataset.column_names):
        texts = [name for name in unused if getattr(dataset.features[name], "dtype", None) == "string"]
        raise ValueError(columns.why_none_is_left(unused, texts))
    if unused:
        where = "" if description is None else f" of the {description} set"
        takes_no = f"which {columns.model_name}.forward does not take"
        logger.info("Ignored columns%s, %s: %s.", where, takes_no, ", ".join(unused))
    return dataset.remove_columns(unused)
