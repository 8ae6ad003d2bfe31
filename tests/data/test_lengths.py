"""The lengths of examples, from a column without decoding it."""

import datasets
import pytest

from mps_trainer.data import lengths
from mps_trainer.data.lengths import lengths_of

ROWS = [{"input_ids": [1] * (i * 7 % 11), "other": i} for i in range(40)]
EXPECTED = [len(row["input_ids"]) for row in ROWS]


@pytest.fixture
def column(monkeypatch):
    """Counts the times that lengths come from the column."""
    calls, original = [], lengths.lengths_in_column

    def count(dataset, name):
        calls.append(result := original(dataset, name))
        return result

    monkeypatch.setattr(lengths, "lengths_in_column", count)
    return calls


@pytest.mark.parametrize("form", [None, "torch", "numpy", "arrow"])
def test_a_column_of_lists_is_measured_whatever_the_format(column, form):
    table = datasets.Dataset.from_list(ROWS).with_format(form)
    if form == "arrow":
        assert lengths.lengths_in_column(table, "input_ids") == EXPECTED
    else:
        assert lengths_of(table, "length", None) == EXPECTED
        assert column == [EXPECTED]


def test_rows_that_were_chosen_or_shuffled_are_measured_in_their_order(column):
    table = datasets.Dataset.from_list(ROWS)
    assert lengths_of(table.select([5, 3, 3, 9]), "length", None) == [EXPECTED[i] for i in (5, 3, 3, 9)]
    shuffled = table.shuffle(seed=1)
    assert lengths_of(shuffled, "length", None) == [len(row["input_ids"]) for row in shuffled]
    assert None not in column


def test_examples_that_a_function_makes_are_measured_one_by_one(column):
    table = datasets.Dataset.from_list(ROWS)
    table.set_transform(lambda rows: {"input_ids": [[1, 2, 3] for _ in rows["input_ids"]]})
    assert lengths_of(table, "length", None) == [3] * 40
    assert column == [None]


def test_a_column_of_text_is_measured_one_by_one(column):
    class Reader:
        model_input_names = ("text",)

    assert lengths_of(datasets.Dataset.from_dict({"text": ["a", "bcd"]}), "length", Reader()) == [1, 3]
    assert column == [None]


def test_lists_of_examples_are_measured_one_by_one():
    assert lengths_of(ROWS, "length", None) == EXPECTED
