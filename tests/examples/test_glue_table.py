"""The in-memory table of the GLUE example."""

import datasets
import numpy as np
import pytest
from glue_table import Lists, Table, highest


@pytest.fixture
def table():
    return Table({"text": ["a", "bb", "ccc"], "label": [0, 1, 0]})


def sizes(rows):
    return {"input_ids": [[7] * len(text) for text in rows["text"]], "label": [label + 5 for label in rows["label"]]}


def test_table_selects_rows_and_removes_columns_without_changing(table):
    few = table.select(range(2))
    assert [few[row] for row in range(len(few))] == [{"text": "a", "label": 0}, {"text": "bb", "label": 1}]
    assert table.remove_columns("label")[2] == {"text": "ccc"}
    assert (len(table), table.column_names) == (3, ["text", "label"])


def test_map_adds_and_replaces_columns(table):
    new = table.map(sizes, desc="Measuring", batched=True)
    assert new.column_names == ["text", "label", "input_ids"]
    assert new[2] == {"text": "ccc", "label": 5, "input_ids": [7, 7, 7]}
    assert table[2] == {"text": "ccc", "label": 0}
    assert new.select(range(2))[1]["input_ids"] == [7, 7]


def test_map_passes_at_most_1000_rows():
    seen = []

    def count(rows):
        seen.append(len(rows["text"]))
        return {"input_ids": [[int(text)] for text in rows["text"]]}

    new = Table({"text": [str(row) for row in range(2500)]}).map(count, desc="Counting")
    assert seen == [1000, 1000, 500]
    assert [new[row]["input_ids"] for row in (0, 999, 1000, 2499)] == [[0], [999], [1000], [2499]]


def test_lists_have_values_and_bounds():
    lists = Lists([[1, 2], [], [30000, 4]])
    assert [*lists] == [[1, 2], [], [30000, 4]]
    assert lists[1:3] == [[], [30000, 4]]
    assert lists.values.dtype == np.int32
    assert all(type(number) is int for number in lists[2])
    for row in (3, -1):
        with pytest.raises(IndexError, match=f"Row {row} of 3"):
            lists[row]


def test_highest_returns_largest_token():
    assert highest(Table({"input_ids": Lists([[1, 9], [], [4]])}), "input_ids") == 9
    assert highest(Table({"input_ids": Lists([[], []])}), "input_ids") == 0
    assert highest(datasets.Dataset.from_dict({"input_ids": [[1, 9], [4]]}), "input_ids") == 9
