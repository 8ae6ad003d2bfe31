"""Loads the examples and finds their labels."""

from __future__ import annotations

import csv
import logging
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glue_arguments import SOURCES, DataTrainingArguments, ModelArguments
from glue_errors import UserError
from glue_tasks import TASKS
from glue_text import LONGEST_TEXT, fault_of
from glue_tsv import LARGEST_SCORE, load_folder

from mps_trainer.utils.terminal import on_terminal
from mps_trainer.utils.text import sentence

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

HUB_DATASET = "nyu-mll/glue"


@dataclass(frozen=True)
class LabelledData:
    """Splits with a column `label` of ids or scores, the names of the text columns, and the names of the classes."""

    splits: Mapping[str, Any]  # tables: datasets.Dataset, or Table for GLUE's own files
    text: tuple[str, ...]
    labels: tuple[Any, ...]  # none for regression

    @property
    def is_regression(self) -> bool:
        return not self.labels


def load_data(data: DataTrainingArguments, model: ModelArguments) -> LabelledData:
    """Loads the data that the arguments name.

    Raises:
        UserError: if it cannot be had or is not what is needed.
    """
    if data.task_name is not None:
        task = TASKS[data.task_name]
        splits: Mapping[str, Any]
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


def _log_as_this_script() -> None:
    import datasets

    datasets.utils.logging.set_verbosity(logging.getLogger("mps_trainer").getEffectiveLevel())
    if not on_terminal():
        datasets.disable_progress_bars()


def _from_hub(name: str, config: str | None, model: ModelArguments) -> DatasetDict:
    _log_as_this_script()
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        return load_dataset(name, config, cache_dir=model.cache_dir, token=model.token)
    except (OSError, ValueError, DatasetsError) as error:
        raise UserError(
            f"The dataset {name} cannot be loaded from the hub: {sentence(error)} What gives data: {SOURCES}."
        ) from error


def _from_files(data: DataTrainingArguments, model: ModelArguments) -> DatasetDict:
    _log_as_this_script()
    from datasets import DatasetDict, are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from datasets.utils import logging

    files = {"train": data.train_file, "validation": data.validation_file, "test": data.test_file}
    verbosity, has_bars = logging.get_verbosity(), not are_progress_bars_disabled()
    disable_progress_bars()
    logging.set_verbosity(logging.CRITICAL)  # what goes wrong is said once, by the error
    try:
        return DatasetDict({split: _from_file(file, model) for split, file in files.items() if file is not None})
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            enable_progress_bars()


def _from_file(file: str, model: ModelArguments) -> Dataset:
    from datasets import load_dataset

    kind = Path(file).suffix.removeprefix(".")
    if kind == "csv":
        _check_csv(file)
    try:
        return load_dataset(kind, data_files={"train": file}, cache_dir=model.cache_dir, split="train")
    except Exception as error:  # pyarrow and pandas raise what they like for a file that is none of theirs
        raise UserError(f"{file} cannot be read as {kind}: {sentence(error.__cause__ or error)}") from error


def _check_csv(file: str) -> None:
    """Refuses rows with a different number of cells than the header, because the reader would shift columns."""
    limit = csv.field_size_limit(sys.maxsize)  # ours is checked below, with the line
    try:
        with open(file, encoding="utf-8-sig", newline="") as lines:
            _check_rows(file, csv.reader(_checked(file, lines), strict=True))
    except UnicodeDecodeError as error:
        raise UserError(f"{file} cannot be read as csv: it is not UTF-8 text ({error}). Save it as UTF-8.") from error
    except OSError as error:
        raise UserError(f"{file} cannot be read as csv: {sentence(error)}") from error
    finally:
        csv.field_size_limit(limit)


def _checked(file: str, lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        fault = fault_of(line)
        if fault is not None:
            raise UserError(f"{file}, line {number}: {fault}")
        yield line


def _check_rows(file: str, reader: Any) -> None:
    rows = 0
    try:
        header = next(reader, [])
        twice = [name for name in header if header.count(name) > 1]
        if twice:
            raise UserError(f"{file}: the header has {twice[0]!r} twice. Name each column once.")
        for row in filter(None, reader):
            rows += 1
            if len(row) != len(header):
                raise UserError(
                    f"{file}, line {reader.line_num}: {len(row)} columns, and the header has {len(header)}. "
                    "A comma inside a text needs quotes around the text."
                )
    except csv.Error as error:
        what = "an open quote" if "end of data" in str(error) else str(error)
        raise UserError(
            f"{file}, line {reader.line_num}: {what}. A text in quotes ends with one, and a quote inside is doubled."
        ) from error
    if not rows:
        raise UserError(f"{file} has no row of data under its header.")


def _with_labels_found(splits: DatasetDict) -> LabelledData:
    """Loads your own data. Classes are the labels found; texts are sentence1 and sentence2 or the first columns."""
    labelled = [split for split in splits if split != "test"]
    for split in labelled:
        if len(splits[split]) == 0:
            raise UserError(f"The {split} data is empty: it has no row.")
        if "label" not in splits[split].column_names:
            names = ", ".join(splits[split].column_names)
            raise UserError(f"The {split} data has no column 'label'; its columns are {names}.")
    reference = splits["train" if "train" in splits else labelled[0]]
    text = _text_columns(reference.features)
    for split in splits:
        _check_texts(splits[split], split, text)
    label = reference.features["label"]
    for split in labelled:
        if not isinstance(getattr(splits[split].features["label"], "dtype", None), str):
            raise UserError(
                "The labels are lists, objects or of several kinds, and text alone, numbers alone, or true and false "
                "are expected."
            )
        _refuse_gaps(splits[split]["label"], split)
    if _is_score(label):
        for split in labelled:
            _check_scores(splits[split], split)
        return LabelledData(splits, text, ())
    names = getattr(label, "names", None)
    classes = tuple(names) if names else _classes(reference)
    if not names:
        for split in labelled:
            unknown = [value for value in splits[split].unique("label") if value not in classes]
            if unknown:
                raise UserError(
                    f"The {split} data has the label {unknown[0]!r}, which the training data has not: "
                    f"{', '.join(map(str, classes))}."
                )
        ids = {value: i for i, value in enumerate(classes)}
        splits = type(splits)({split: _with_ids(rows, ids) for split, rows in splits.items()})
    return LabelledData(splits, text, classes)


def _classes(rows: Dataset) -> tuple[Any, ...]:
    """Returns the labels of `rows` in order. Refuses labels that cannot be classes."""
    values = rows.unique("label")
    if len({type(value) for value in values}) > 1:
        kinds = " and ".join(sorted({type(value).__name__ for value in values}))
        raise UserError(f"The labels are of different kinds, {kinds}: write all as text, or all as whole numbers.")
    if len(values) == 1:
        raise UserError(f"The data has one label only, {values[0]!r}: there is nothing to tell apart.")
    if len(values) == len(rows) > _FEW:
        raise UserError(
            f"The data has {len(values)} labels in {len(rows)} rows, each row its own: is 'label' the right column? "
            "Scores are written with a decimal point."
        )
    return tuple(sorted(values))


_FEW = 50  # rows, of which each may well have a label of its own


def _is_score(feature: Any) -> bool:
    return getattr(feature, "dtype", "") in ("float16", "float32", "float64")


def _check_scores(rows: Dataset, split: str) -> None:
    for row, value in enumerate(rows["label"], start=1):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise UserError(
                f"The {split} data has the label {value!r} in row {row}, and the training data has scores."
            )
        if not abs(value) <= LARGEST_SCORE:
            raise UserError(f"The {split} data has the score {value} in row {row}, and a finite number is expected.")


def _check_texts(rows: Dataset, split: str, columns: tuple[str, ...]) -> None:
    for column in columns:
        if column not in rows.column_names:
            raise UserError(f"The {split} data has no column {column!r}, which the other data has.")
        if getattr(rows.features[column], "dtype", "") not in _TEXT:
            raise UserError(
                f"The {split} data has no text in the column {column!r}, where the training data has some."
            )
        for row, value in enumerate(rows[column], start=1):
            if value is not None and (len(value) > LONGEST_TEXT or "\0" in value):
                raise UserError(f"The {split} data, row {row}: {fault_of(value)}")


_TEXT = ("string", "large_string")


def _text_columns(features: Any) -> tuple[str, ...]:
    """Returns sentence1 and sentence2, or the first one or two columns with text."""
    texts = [name for name, feature in features.items() if name != "label" and getattr(feature, "dtype", "") in _TEXT]
    if "sentence1" in texts and "sentence2" in texts:
        return ("sentence1", "sentence2")
    if not texts:
        raise UserError(f"The data has no column of text beside 'label'; its columns are {', '.join(features)}.")
    return tuple(texts[:2])


def _with_ids(rows: Any, ids: dict[Any, int]) -> Any:
    """Returns `rows` with class ids for labels. Rows without a known label, as in a test set, get -1."""
    if "label" not in rows.column_names:
        return rows
    found = [ids.get(value, -1) for value in rows["label"]]
    return rows.remove_columns("label").add_column("label", found)


def _refuse_gaps(labels: Any, split: str) -> None:
    for row, value in enumerate(labels, start=1):
        if value is None or (isinstance(value, float) and math.isnan(value)):
            raise UserError(f"The {split} data has no label in row {row}.")
