"""Tables are read as they are, or refused in one line that names the place."""

import csv
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mps_trainer import MisconfigurationException
from mps_trainer.scripts.tables import classified, load_splits, read_table, require_columns, sample
from tests.conftest import refusal

datasets = pytest.importorskip("datasets")


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.mark.parametrize(
    ("line", "first", "second"),
    [
        pytest.param('He said " yes\t"Never" , "never\n', 'He said " yes', '"Never" , "never', id="quotes"),
        pytest.param("a\u2028b\x85c\x0bd\te\n", "a\u2028b\x85c\x0bd", "e", id="other line ends"),
        pytest.param("a\tb\n\n", "a", "b", id="several at the end"),
        pytest.param("a\tb\r\n", "a", "b", id="carriage return"),
        pytest.param("1\t2\n", "1", "2", id="numbers stay text"),
    ],
)
def test_cells_of_tsv_are_read_as_written(write, line, first, second):
    assert read_table(write("a.tsv", "x\ty\n" + line)).to_list() == [{"x": first, "y": second}]
    assert read_table(write("a.tsv", line), ("x", "y")).to_list() == [{"x": first, "y": second}]


def test_columns_of_csv_that_are_all_numbers_hold_numbers(write):
    rows = read_table(write("a.csv", '\ufefftext,label,score,mixed\n"a, ""b""",1,0.5,1\nNA,2,1,x\nc,,,\n'))
    assert rows.to_list() == [
        {"text": 'a, "b"', "label": 1, "score": 0.5, "mixed": "1"},
        {"text": "NA", "label": 2, "score": 1.0, "mixed": "x"},
        {"text": "c", "label": None, "score": None, "mixed": None},
    ]


def test_long_texts_are_read(write):
    limit = csv.field_size_limit()
    (row,) = read_table(write("a.csv", f"text\n{'word ' * 40_000}\n")).to_list()
    assert (len(row["text"]), csv.field_size_limit()) == (200_000, limit)


def test_codes_with_underscores_stay_text(write):
    assert read_table(write("a.csv", "label\n1_0\n2_0\n"))["label"][:] == ["1_0", "2_0"]


@pytest.mark.parametrize("content", ['{"a": 1}\n\n{"a": 2, "b": "\u2028"}', '\n [{"a": 1}, {"a": 2}]'])
def test_objects_are_rows(write, content):
    assert read_table(write("a.jsonl", content))["a"][:] == [1, 2]


def test_a_column_that_the_first_object_lacks_is_read(write):
    rows = read_table(write("a.jsonl", '{"a": 1}\n{"a": 2, "b": "x"}'))
    assert rows.to_list() == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]


thorough = settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.json"])
@thorough
@given(content=st.binary(max_size=200) | st.text("ab,\t\n\r\"'\\{}[]:1\0\ufeff", max_size=60).map(str.encode))
def test_any_bytes_are_rows_or_one_error(write, name, content):
    path, refused = write(name, content), ""
    try:
        rows = len(read_table(path))
    except MisconfigurationException as error:
        rows, refused = 0, str(error)
    assert rows > 0 or str(path) in refused


# A cell has any characters but those that end it, and surrogates, which cannot be written.
cells = st.text(st.characters(exclude_characters="\t\n\r\0", exclude_categories=["Cs"]), max_size=20)


@thorough
@given(rows=st.lists(st.tuples(cells, cells), min_size=1, max_size=8))
def test_valid_rows_are_read_unchanged(write, rows):
    path = write("a.tsv", "first\tsecond\n" + "\n".join(f"{first}\t{second}." for first, second in rows))
    assert [(row["first"], row["second"]) for row in read_table(path)] == [(a, f"{b}.") for a, b in rows]


def lines(count):
    return "".join(json.dumps({"text": f"row {number}"}) + "\n" for number in range(count))


def test_a_tenth_is_held_back_where_there_is_no_split_for_it(write):
    train, held = load_splits(str(write("rows.jsonl", lines(40))))
    assert (len(train), len(held)) == (36, 4)
    assert not set(train["text"]) & set(held["text"])
    assert "Give two rows or more" in refusal(load_splits, str(write("one.jsonl", lines(1))))


def test_splits_of_a_folder_stay_as_they_are(tmp_path, write, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    write("data/train.jsonl", lines(40))
    write("data/test.jsonl", lines(3))
    train, held = load_splits(str(tmp_path / "data"))
    assert (len(train), len(held)) == (40, 3)


def test_a_configuration_of_a_dataset_is_picked(tmp_path, write, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    configs = "".join(f"- config_name: {name}\n  data_files: {name}.jsonl\n" for name in ("de", "en"))
    write("data/README.md", f"---\nconfigs:\n{configs}---\n")
    write("data/de.jsonl", lines(20))
    write("data/en.jsonl", lines(40))
    folder = str(tmp_path / "data")
    assert [len(load_splits(folder, name)[0]) for name in ("de", "en")] == [18, 36]
    for name in (None, "fr"):
        said = refusal(load_splits, folder, name)
        assert "'de', 'en'" in said
        assert "--dataset_config_name" in said
    assert "leave out --dataset_config_name de" in refusal(load_splits, str(tmp_path / "data/de.jsonl"), "de")


def test_a_sample_is_drawn_at_random_and_the_same_each_time():
    rows = datasets.Dataset.from_dict({"n": range(100)})
    first, again = sample(rows, 10), sample(rows, 10)
    assert first["n"][:] == again["n"][:] != list(range(10))
    assert len(set(first["n"])) == 10
    assert [len(sample(rows, most)) for most in (1, 100, 200, None)] == [1, 100, 100, 100]
    assert "must be at least 1, not 0" in refusal(sample, rows, 0)


def test_a_missing_column_is_refused_with_those_that_there_are():
    rows = datasets.Dataset.from_dict({"a": [1], "b": [2]})
    require_columns(rows, "text_column_names", "a", "b")
    said = refusal(require_columns, rows, "text_column_names", "a", "c")
    assert said == "--text_column_names c: there is no such column; the columns are a, b."


def test_a_classifiers_columns_may_have_other_names():
    table = datasets.Dataset.from_dict(
        {"label": ["x", "y"] * 2, "text": ["a"] * 4, "q": ["b"] * 4, "kind": [7, 8] * 2}
    )
    numbered, texts, labels = classified({"train": table, "test": table.remove_columns("kind")}, " q,text ", "kind")
    assert (texts, labels) == (("q", "text"), ["7", "8"])
    assert numbered["train"].column_names == ["q", "text", "label"]
    assert numbered["train"]["label"][:] == [0, 1, 0, 1]
    assert numbered["test"].column_names == ["q", "text"]
    assert "no text in the column 'kind'" in refusal(classified, {"train": table}, "kind")
    assert "is called label" in refusal(classified, {"train": table}, "label", "kind")


def splits(test=None, **columns):
    made = {name: datasets.Dataset.from_dict({"n": range(len(labels)), "text": ["a"] * len(labels), "label": labels})
            for name, labels in columns.items()}  # fmt: skip
    return made if test is None else {**made, "test": datasets.Dataset.from_dict(test)}


@pytest.mark.parametrize(
    ("labels", "names", "ids"),
    [
        (["spam", "ham"] * 2, ["ham", "spam"], [1, 0, 1, 0]),
        ([10, 9, 10, 9], ["9", "10"], [1, 0, 1, 0]),
        ([True, False] * 2, ["False", "True"], [1, 0, 1, 0]),
        ([0.5, 1.0] * 2, [], [0.5, 1.0] * 2),
    ],
)
def test_labels_become_classes_or_stay_scores(labels, names, ids):
    test = {"n": [1], "text": ["b"], "label": [labels[0]]}
    numbered, texts, found = classified(splits(test, train=labels, validation=labels[:2]))
    assert (texts, found) == (("text",), names)
    assert numbered["train"]["label"][:] == ids
    assert numbered["validation"]["label"][:] == ids[:2]
    assert numbered["test"].column_names == ["text"]
    assert numbered["train"].column_names == ["text", "label"]  # n could be the name of an argument of the model


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_a_score_that_cannot_be_learned_is_refused(value):
    assert "The train data has no label in row 2." in refusal(classified, splits(train=[0.5, value, 0.25]))
