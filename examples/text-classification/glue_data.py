"""Where the examples come from, and what their labels are."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glue_arguments import SOURCES, DataTrainingArguments, ModelArguments
from glue_errors import UserError, one_line
from glue_tasks import TASKS
from glue_tsv import load_folder

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

HUB_DATASET = "nyu-mll/glue"


@dataclass(frozen=True)
class LabelledData:
    """Splits with a column `label` of ids or scores, the names of the text columns, and the names of the classes."""

    splits: DatasetDict
    text: tuple[str, ...]
    labels: tuple[Any, ...]  # none for regression

    @property
    def is_regression(self) -> bool:
        return not self.labels


def load_data(data: DataTrainingArguments, model: ModelArguments) -> LabelledData:
    """The data that the arguments name.

    Raises:
        UserError: if it cannot be had or is not what is needed.
    """
    if data.task_name is not None:
        task = TASKS[data.task_name]
        if data.data_dir is not None:
            splits = load_folder(Path(data.data_dir), task)
        else:
            splits = _from_hub(HUB_DATASET, data.task_name, model)
        return LabelledData(splits, task.text, task.labels)
    if data.dataset_name is not None:
        splits = _from_hub(data.dataset_name, data.dataset_config_name, model)
    else:
        splits = _from_files(data, model)
    return _with_labels_found(splits)


def _from_hub(name: str, config: str | None, model: ModelArguments) -> DatasetDict:
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        return load_dataset(name, config, cache_dir=model.cache_dir, token=model.token)
    except (OSError, ValueError, DatasetsError) as error:
        raise UserError(
            f"The dataset {name} cannot be loaded from the hub: {one_line(error)} What gives data: {SOURCES}."
        ) from error


def _from_files(data: DataTrainingArguments, model: ModelArguments) -> DatasetDict:
    from datasets import DatasetDict, disable_progress_bars, enable_progress_bars
    from datasets.utils import logging

    files = {"train": data.train_file, "validation": data.validation_file, "test": data.test_file}
    verbosity = logging.get_verbosity()
    disable_progress_bars()
    logging.set_verbosity(logging.CRITICAL)  # what goes wrong is said once, by the error
    try:
        return DatasetDict({split: _from_file(file, model) for split, file in files.items() if file is not None})
    finally:
        logging.set_verbosity(verbosity)
        enable_progress_bars()


def _from_file(file: str, model: ModelArguments) -> Dataset:
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    kind = Path(file).suffix.removeprefix(".")
    if kind == "csv":
        _check_csv(file)
    try:
        return load_dataset(kind, data_files={"train": file}, cache_dir=model.cache_dir, split="train")
    except (OSError, ValueError, DatasetsError) as error:
        raise UserError(f"{file} cannot be read as {kind}: {one_line(error.__cause__ or error)}") from error


def _check_csv(file: str) -> None:
    """Refuses what the reader would take in another way: rows of another length than the header's move columns."""
    try:
        with open(file, encoding="utf-8-sig", newline="") as lines:
            reader = csv.reader(lines)
            header = next(reader, [])
            rows = 0
            for row in filter(None, reader):
                rows += 1
                if len(row) != len(header):
                    raise UserError(
                        f"{file}, line {reader.line_num}: {len(row)} columns, and the header has {len(header)}. "
                        "A comma inside a text needs quotes around the text."
                    )
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{file} cannot be read as csv: {one_line(error)}") from error
    if not rows:
        raise UserError(f"{file} has no row of data under its header.")


def _with_labels_found(splits: DatasetDict) -> LabelledData:
    """Data of one's own: classes are the labels there are, texts sentence1 and sentence2 or the first columns."""
    labelled = [split for split in splits if split != "test"]
    for split in labelled:
        if "label" not in splits[split].column_names:
            names = ", ".join(splits[split].column_names)
            raise UserError(f"The {split} data has no column 'label'; its columns are {names}.")
        if len(splits[split]) == 0:
            raise UserError(f"The {split} data is empty: it has no row.")
    reference = splits["train" if "train" in splits else labelled[0]]
    text = _text_columns(reference.features)
    for split in splits:
        absent = [name for name in text if name not in splits[split].column_names]
        if absent:
            raise UserError(f"The {split} data has no column {absent[0]!r}, which the other data has.")
    label = reference.features["label"]
    if not isinstance(getattr(label, "dtype", None), str):
        raise UserError("The labels are lists or objects, and text, numbers or true and false are expected.")
    for split in labelled:
        _refuse_gaps(splits[split]["label"], split)
    if getattr(label, "dtype", "") in ("float32", "float64"):
        return LabelledData(splits, text, ())
    names = getattr(label, "names", None)
    classes = tuple(names) if names else tuple(sorted(reference.unique("label")))
    if not names:
        for split in labelled:
            unknown = [value for value in splits[split].unique("label") if value not in classes]
            if unknown:
                known = ", ".join(map(str, classes))
                raise UserError(
                    f"The {split} data has the label {unknown[0]!r}, which the training data has not: {known}."
                )
        ids = {value: i for i, value in enumerate(classes)}
        splits = type(splits)({split: _with_ids(rows, ids) for split, rows in splits.items()})
    return LabelledData(splits, text, classes)


def _text_columns(features: Any) -> tuple[str, ...]:
    """sentence1 and sentence2, or the first one or two columns whose values are text."""
    texts = [
        name
        for name, feature in features.items()
        if name != "label" and getattr(feature, "dtype", "") in ("string", "large_string")
    ]
    if "sentence1" in texts and "sentence2" in texts:
        return ("sentence1", "sentence2")
    if not texts:
        raise UserError(f"The data has no column of text beside 'label'; its columns are {', '.join(features)}.")
    return tuple(texts[:2])


def _with_ids(rows: Any, ids: dict[Any, int]) -> Any:
    """`rows` with class ids for labels; rows without a known label, as in a test set, get -1."""
    if "label" not in rows.column_names:
        return rows
    found = [ids.get(value, -1) for value in rows["label"]]
    return rows.remove_columns("label").add_column("label", found)


def _refuse_gaps(labels: Any, split: str) -> None:
    for row, value in enumerate(labels, start=1):
        if value is None or (isinstance(value, float) and math.isnan(value)):
            raise UserError(f"The {split} data has no label in row {row}.")
