"""Holds rows in memory with the methods of `datasets.Dataset` that the script uses.

GLUE's own files need no more, and `import datasets` takes as long as half of `import torch`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np
from tqdm import tqdm

_TOGETHER = 1000  # rows that are tokenized at once


class Lists(Sequence):
    """Stores lists of integers in one array, which needs less memory than Python's lists."""

    def __init__(self, lists: Sequence[Sequence[int]]) -> None:
        self._ends = [0, *accumulate(map(len, lists))]
        self.values = np.fromiter(chain.from_iterable(lists), dtype=np.int32, count=self._ends[-1])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[each] for each in range(*row.indices(len(self)))]
        if not 0 <= row < len(self):
            raise IndexError(f"Row {row} of {len(self)}.")
        return self.values[self._ends[row] : self._ends[row + 1]].tolist()


class Table:
    """Columns of equal length by their names; a row is a dict."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self.columns = dict(columns)

    @property
    def column_names(self) -> list[str]:
        return list(self.columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {name: values[row] for name, values in self.columns.items()}

    def select(self, rows: range) -> Table:
        """Returns the first rows; `rows` begins at 0."""
        return Table({name: values[: len(rows)] for name, values in self.columns.items()})

    def remove_columns(self, name: str) -> Table:
        return Table({each: values for each, values in self.columns.items() if each != name})

    def map(self, function: Callable[[dict[str, Any]], Mapping[str, Any]], desc: str, **settings: Any) -> Table:
        """Returns the table with the columns that `function` makes of those of many rows at once.

        Args:
            settings: what else `datasets.Dataset.map` takes. Nothing of it applies here.
        """
        made: dict[str, list[Any]] = {}
        for begin in tqdm(range(0, len(self), _TOGETHER), desc=desc, unit="k", disable=None):
            part = {name: values[begin : begin + _TOGETHER] for name, values in self.columns.items()}
            for name, values in function(part).items():
                made.setdefault(name, []).extend(values)
        new = {name: Lists(values) if isinstance(values[0], list) else values for name, values in made.items()}
        return Table({**self.columns, **new})


def highest(rows: Any, column: str) -> int:
    """Returns the highest number in a column of lists of a table or a `datasets.Dataset`; 0 if there is none."""
    if isinstance(rows, Table):
        return int(rows.columns[column].values.max(initial=0))
    import pyarrow.compute

    return pyarrow.compute.max(pyarrow.compute.list_flatten(rows.data.column(column))).as_py() or 0
