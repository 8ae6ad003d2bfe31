"""Rows of GLUE's own files, in memory."""

import numpy as np
import pytest
from glue_table import Lists, Table, highest


@pytest.fixture
def table():
    return Table({"text": ["a", "bb", "ccc"], "label": [0, 1, 0]})


def sizes(rows):
    return {"input_ids": [[7] * len(text) for text in rows["text"]], "label": [label + 5 for label in rows["label"]]}


def test_rows_and_columns(table):
    assert len(table) == 3
    assert table.column_names == ["text", "label"]
    assert table[1] == {"text": "bb", "label": 1}
    assert [table[row]["text"] for row in range(3)] == ["a", "bb", "ccc"]


def test_the_first_rows(table):
    few = table.select(range(2))
    assert [few[row] for row in range(len(few))] == [{"text": "a", "label": 0}, {"text": "bb", "label": 1}]
    assert len(table) == 3


def test_without_a_column(table):
    assert table.remove_columns("label")[2] == {"text": "ccc"}
    assert table.column_names == ["text", "label"]


def test_map_adds_and_replaces_columns(table):
    new = table.map(sizes, desc="Measuring", batched=True)
    assert new.column_names == ["text", "label", "input_ids"]
    assert new[2] == {"text": "ccc", "label": 5, "input_ids": [7, 7, 7]}
    assert table[2] == {"text": "ccc", "label": 0}


def test_map_takes_more_rows_than_it_gives_at_once():
    seen = []

    def count(rows):
        seen.append(len(rows["text"]))
        return {"input_ids": [[int(text)] for text in rows["text"]]}

    new = Table({"text": [str(row) for row in range(2500)]}).map(count, desc="Counting")
    assert seen == [1000, 1000, 500]
    assert [new[row]["input_ids"] for row in (0, 999, 1000, 2499)] == [[0], [999], [1000], [2499]]


def test_the_first_rows_of_lists(table):
    few = table.map(sizes, desc="Measuring").select(range(2))
    assert len(few) == 2
    assert few[1]["input_ids"] == [7, 7]


def test_lists_are_as_they_were():
    lists = Lists([[1, 2], [], [30000, 4]])
    assert [*lists] == [[1, 2], [], [30000, 4]]
    assert lists[1:3] == [[], [30000, 4]]
    assert lists.values.dtype == np.int32
    assert all(type(number) is int for number in lists[2])


@pytest.mark.parametrize("row", [3, -1])
def test_a_row_that_does_not_exist(row):
    with pytest.raises(IndexError, match=f"Row {row} of 3"):
        Lists([[1], [2], [3]])[row]


def test_the_highest_number(table):
    assert highest(Table({"input_ids": Lists([[1, 9], [], [4]])}), "input_ids") == 9
    assert highest(Table({"input_ids": Lists([[], []])}), "input_ids") == 0


def test_the_highest_number_of_a_dataset():
    datasets = pytest.importorskip("datasets")
    assert highest(datasets.Dataset.from_dict({"input_ids": [[1, 9], [4]]}), "input_ids") == 9
