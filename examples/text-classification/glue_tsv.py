"""Reads GLUE's TSV files: no quoting, and every malformed row is reported with its line."""

from __future__ import annotations

import codecs
import math
from pathlib import Path
from typing import Any

from glue_errors import UserError
from glue_table import Table
from glue_tasks import GlueTask
from glue_text import fault_of

from mps_trainer.utils.text import sentence

LARGEST_SCORE = 3.4e38  # beyond it float32, which scores are kept in, has only infinity


def load_folder(folder: Path, task: GlueTask) -> dict[str, Table]:
    """Returns the splits of `task` with files in `folder`, with the hub's columns, label ids and `idx`.

    Test files have no labels; theirs are -1, as on the hub.

    Raises:
        UserError: for a folder without any of the files, and for a malformed one, with file and line.
    """
    if not folder.is_dir():
        raise UserError(f"--data_dir {folder} is not a folder. Name one that has {_names(task)}.")
    links = [path for _, name in task.splits if (path := folder / name).is_symlink() and not path.exists()]
    if links:
        raise UserError(
            f"{links[0]} is a link to {links[0].readlink()}, which does not exist. Mend or remove the link."
        )
    found = {split: folder / name for split, name in task.splits if (folder / name).is_file()}
    if not found:
        raise UserError(f"--data_dir {folder} has none of the files of this task: {_names(task)}.")
    return {split: read_split(path, task, split) for split, path in found.items()}


def read_split(path: Path, task: GlueTask, split: str) -> Table:
    """Returns one file as a table."""
    labelled = not split.startswith("test")
    columns = dict(zip(task.tsv_text or task.text, task.text, strict=True))
    header, rows = read_rows(path, task.tsv_header if labelled else None)
    wanted = [*columns, task.tsv_label] if labelled else [*columns]
    missing = [name for name in wanted if name not in header]
    if missing:
        raise UserError(f"{path} has no column {missing[0]!r}; its columns are {', '.join(map(repr, header))}.")
    twice = [name for name in wanted if header.count(name) > 1]
    if twice:
        raise UserError(f"{path}: the header has {twice[0]!r} twice. Name each column once.")
    if not rows:
        raise UserError(f"{path} is empty: it has no row of data.")
    data: dict[str, list[Any]] = {
        name: [cells[header.index(column)] for _, cells in rows] for column, name in columns.items()
    }
    position = header.index(task.tsv_label) if labelled else None
    data["label"] = [
        (-1.0 if task.is_regression else -1) if position is None else _label(path, line, cells[position], task)
        for line, cells in rows
    ]
    data["idx"] = list(range(len(rows)))
    return Table({name: data[name] for name in (*task.text, "label", "idx")})


def read_rows(path: Path, header: tuple[str, ...] | None) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Returns column names, and line number and cells of each row. The first line is the header unless given.

    Lines end at a line feed and nowhere else, and cells at a tab: quotes mean nothing in these files.
    """
    try:
        lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {sentence(error)}") from error
    numbered = [(number, _text(path, number, line)) for number, line in enumerate(lines, start=1)]
    while numbered and not numbered[-1][1]:
        numbered.pop()
    if header is None:
        if not numbered:
            raise UserError(f"{path} is empty: it has not even a header line.")
        header = tuple(numbered.pop(0)[1].split("\t"))
    rows = [(number, line.split("\t")) for number, line in numbered]
    for number, cells in rows:
        if len(cells) != len(header):
            raise UserError(
                f"{path}, line {number}: {len(cells)} columns, and {len(header)} are expected "
                f"({', '.join(header)}). Columns are separated by one tab."
            )
    return list(header), rows


def _text(path: Path, number: int, line: bytes) -> str:
    try:
        text = line.decode().removesuffix("\r")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}, line {number}: this is not UTF-8 text ({error}). Save the file as UTF-8.") from error
    fault = fault_of(text)
    if fault is not None:
        raise UserError(f"{path}, line {number}: {fault}")
    return text


def _label(path: Path, line: int, text: str, task: GlueTask) -> int | float:
    """Returns a class id from its number or name, or a score."""
    if task.is_regression:
        try:
            score = float(text)
        except ValueError:
            score = math.nan
        if not abs(score) <= LARGEST_SCORE:
            raise UserError(f"{path}, line {line}: the {task.tsv_label} is {text!r}, and a number is expected.")
        return score
    if text in task.labels:
        return task.labels.index(text)
    if text.isascii() and text.isdecimal() and len(text) < 10 and int(text) < len(task.labels):
        return int(text)
    accepted = " or ".join([f"0 to {len(task.labels) - 1}", *task.labels])
    raise UserError(f"{path}, line {line}: the {task.tsv_label} is {text!r}, and {accepted} is expected.")


def _names(task: GlueTask) -> str:
    return ", ".join(name for _, name in task.splits)
