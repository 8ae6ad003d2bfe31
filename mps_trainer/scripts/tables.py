"""Reads tables of training data: CSV, TSV and JSON files, folders, and datasets on the hub."""

from __future__ import annotations

import contextlib
import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import MisconfigurationException
from ..utils.text import counted
from .loading import errors_about, go_offline_if_unreachable

TEXT = ("string", "large_string")
LONGEST = 2**31 - 1  # characters of a cell, which may be a whole book: Python's csv stops at 131,072


def load_splits(name: str, config: str | None = None, seed: int = 42) -> tuple[Any, Any]:
    """Returns the rows to train on and those to evaluate on.

    `name` is a file (see `read_table`), a folder with a file for each split, or a dataset on the hub. A tenth of the
    rows is held back if there is no split validation or test.

    Args:
        config: the configuration of a dataset that has several.
    """
    if Path(name).is_file():
        if config is not None:
            raise MisconfigurationException(
                f"{name} is a file, and has no configurations: leave out --dataset_config_name {config}."
            )
        splits: Mapping[str, Any] = {"train": read_table(Path(name))}
    else:
        instead = (
            "Give a file, a folder, or a dataset on a hub that can be reached, and --dataset_config_name for one with "
            "several configurations."
        )
        splits = load_dataset(name, config, instead)
    if "train" not in splits:
        raise MisconfigurationException(f"{name} has no split train, but {', '.join(splits)}.")
    if held := [splits[split] for split in ("validation", "test") if split in splits]:
        return splits["train"], held[0]
    with errors_about("dataset", name, "Give two rows or more, of which one is held back."):
        parts = splits["train"].train_test_split(0.1, seed=seed)
    return parts["train"], parts["test"]


def sample(rows: Any, most: int | None, seed: int = 42) -> Any:
    """Returns `most` rows, drawn at random, because many datasets are in the order of their labels; all for None."""
    if most is None:
        return rows
    if most < 1:
        raise MisconfigurationException(f"--max_train_samples and --max_eval_samples must be at least 1, not {most}.")
    return rows.shuffle(seed=seed).select(range(min(most, len(rows))))


def require_columns(rows: Any, flag: str, *names: str) -> None:
    """Raises MisconfigurationException if `rows` lacks one of the columns, which the flag names."""
    for name in names:
        if name not in rows.column_names:
            raise MisconfigurationException(
                f"--{flag} {name}: there is no such column; the columns are {', '.join(rows.column_names)}."
            )


def load_dataset(name: str, config: str | None, instead: str, **source: Any) -> Mapping[str, Any]:
    """Returns the splits of a folder or of a dataset on the hub. `instead` says what to do without it."""
    if not Path(name).is_dir():
        go_offline_if_unreachable()
    import datasets

    with errors_about("dataset", name, instead):
        return datasets.load_dataset(name, config, **source)


def read_table(path: Path, header: Sequence[str] | None = None) -> Any:
    """Returns the rows of a file as a `datasets.Dataset`.

    A .tsv file has a tab between two cells, and quotes mean nothing in it. A .json or .jsonl file has an object in
    each line, or a list of objects. A column of a .csv file whose cells are all numbers holds numbers.

    `header` names the columns of a file without a header line.

    Raises:
        MisconfigurationException: for another kind of file, and for a row with more or fewer cells than the header.
            Other readers shift the columns of such a row.
    """
    import datasets

    with errors_about("file", str(path), "Save a table as .csv, .tsv, .json or .jsonl, in UTF-8."):
        if path.suffix in (".json", ".jsonl"):
            rows = _read_objects(path)
            names = dict.fromkeys(name for row in rows for name in row)  # a row may lack what others have
            return datasets.Dataset.from_dict({name: [row.get(name) for row in rows] for name in names})
        if path.suffix not in (".csv", ".tsv"):
            raise ValueError(f"its name ends in {path.suffix or 'nothing'}.")
        columns = _read_cells(path, header)
        if path.suffix == ".csv":
            columns = {name: _to_numbers(cells) for name, cells in columns.items()}
        return datasets.Dataset.from_dict(columns)


def _read_objects(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8-sig")
    rows = json.loads(text) if text.lstrip().startswith("[") else []
    for number, line in enumerate([] if rows else text.split("\n"), start=1):
        try:
            rows += [json.loads(line)] if line.strip() else []
        except ValueError as error:
            raise MisconfigurationException(f"{path}, line {number}: this is no JSON ({error}).") from error
    if not any(rows) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("it has no rows." if not any(rows) else "a row is no object, as in {...}.")
    return rows


def _read_cells(path: Path, header: Sequence[str] | None) -> dict[str, list[Any]]:
    rows: list[list[str]] = []
    style: dict[str, Any] = {} if path.suffix == ".csv" else {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    hint = "Columns are separated by one tab." if style else "A text with a comma or a quote needs quotes around it."
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True, **style)
        limit = csv.field_size_limit(LONGEST)
        try:
            names = header or next(reader, [])
            for cells in filter(None, reader):
                if len(cells) != len(names):
                    raise csv.Error(f"{len(cells)} columns, and {len(names)} are expected ({', '.join(names)})")
                rows.append(cells)
        except csv.Error as error:
            raise MisconfigurationException(f"{path}, line {reader.line_num}: {error}. {hint}") from error
        finally:
            csv.field_size_limit(limit)
    if not rows or len(set(names)) < len(names):
        raise ValueError("the header has a column twice." if rows else "it has no rows.")
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def _to_numbers(cells: list[str]) -> list[Any]:
    """Returns cells as numbers if all are, otherwise as text; None for an empty cell."""
    for kind in () if any("_" in cell for cell in cells) else (int, float):  # Python reads 1_0 as 10
        with contextlib.suppress(ValueError):
            return [kind(cell) if cell else None for cell in cells]
    return [cell or None for cell in cells]


def classified(
    splits: Mapping[str, Any], text_column_names: str | None = None, label_column_name: str = "label"
) -> tuple[dict[str, Any], tuple[str, ...], list[str]]:
    """Returns a classifier's splits, the one or two columns with text, and the names of the classes: none for scores.

    The column `label` then has the numbers of the classes, except in splits whose name begins with test.

    Args:
        text_column_names: one column, or two with a comma between them. Default: those that hold text.
        label_column_name: the column that becomes `label`.

    Raises:
        MisconfigurationException: if there are no such columns, or labels that cannot be learned.
    """
    import datasets

    given = tuple(name.strip() for name in (text_column_names or "").split(",") if name.strip())
    if len(given) > 2 or len(set(given)) < len(given) or label_column_name in given:
        raise MisconfigurationException(
            f"--text_column_names {text_column_names}: give one column or two different ones, as in "
            "question,answer, without the column of the labels."
        )
    labelled = {name: rows for name, rows in splits.items() if not name.startswith("test")}
    for name, rows in labelled.items():
        if label_column_name not in rows.column_names:
            names = ", ".join(rows.column_names)
            raise MisconfigurationException(
                f"The {name} data has no column {label_column_name!r}; its columns are {names}. Name the one with "
                "labels: --label_column_name NAME."
            )
        if label_column_name != "label":
            if "label" in given:
                raise MisconfigurationException("Rename the column of texts that is called label.")
            others = rows.remove_columns("label") if "label" in rows.column_names else rows
            labelled[name] = others.rename_column(label_column_name, "label")
    splits = {**splits, **labelled}
    for name, rows in labelled.items():
        for number, value in enumerate(rows["label"], start=1):
            if value is None or (isinstance(value, float) and not math.isfinite(value)):
                raise MisconfigurationException(f"The {name} data has no label in row {number}.")
    first = labelled["train"] if "train" in labelled else next(iter(labelled.values()))
    kinds = {name: getattr(feature, "dtype", None) for name, feature in first.features.items()}
    texts = tuple(name for name, kind in kinds.items() if kind in TEXT and name != "label")[:2]
    if kinds.get("sentence1") in TEXT and kinds.get("sentence2") in TEXT:
        texts = ("sentence1", "sentence2")
    texts = given or texts
    if not texts:
        raise MisconfigurationException(f"No column beside 'label' has text; the columns are {', '.join(kinds)}.")
    for name, rows in splits.items():
        for column in texts:
            if getattr(rows.features.get(column), "dtype", None) not in TEXT:
                names = ", ".join(rows.column_names)
                raise MisconfigurationException(
                    f"The {name} data has no text in the column {column!r}; its columns are {names}."
                )
    # any other column would reach the model if it had an argument's name, such as position_ids
    numbered = {
        name: rows.select_columns([*texts, "label"] if name in labelled else list(texts))
        for name, rows in splits.items()
    }
    if kinds["label"] in ("float32", "float64"):
        for name, rows in labelled.items():
            if getattr(rows.features["label"], "dtype", None) not in ("float32", "float64", "int64"):
                raise MisconfigurationException(
                    f"The labels of the training data are scores, but the labels of the {name} data are not."
                )
        return numbered, texts, []
    if classes := getattr(first.features["label"], "names", None):
        return numbered, texts, list(classes)
    if kinds["label"] not in (*TEXT, "bool", "int64"):
        raise MisconfigurationException("The labels are neither text, nor whole numbers, nor scores with a point.")
    labels = sorted(first.unique("label"))
    if len(labels) == 1 or len(labels) == len(first) > 50:
        raise MisconfigurationException(
            f"{len(first)} rows have {counted(len(labels), 'label')}, and two or more are needed, each in several "
            "rows. Write scores with a decimal point."
        )
    ids = {label: i for i, label in enumerate(labels)}
    kind = datasets.ClassLabel(names=[str(label) for label in labels])
    for name, rows in labelled.items():
        if unknown := [value for value in rows.unique("label") if value not in ids]:
            raise MisconfigurationException(
                f"The {name} data has the label {unknown[0]!r}, the training data has not."
            )
        column = [ids[value] for value in rows["label"]]
        numbered[name] = rows.select_columns(list(texts)).add_column("label", column, feature=kind)
    return numbered, texts, list(kind.names)
