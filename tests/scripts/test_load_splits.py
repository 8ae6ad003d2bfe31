"""`load_splits` reads files and folders, holds rows back, and refuses in one line."""

from __future__ import annotations

import json

import pytest

from mps_trainer import MisconfigurationException
from mps_trainer.scripts.loading import load_splits, require_dataset

pytest.importorskip("datasets")


def rows(count):
    return "".join(json.dumps({"text": f"row {number}"}) + "\n" for number in range(count))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The data set's cache lies in the test's folder."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def load(name, **settings):
    return load_splits(str(name), None, "train", "test", seed=0, instead="Give another.", **settings)


def test_a_tenth_is_held_back_where_there_is_no_split_for_it(tmp_path):
    (tmp_path / "rows.jsonl").write_text(rows(40))
    train, held = load(tmp_path / "rows.jsonl")
    assert (len(train), len(held)) == (36, 4)
    assert not set(train["text"]) & set(held["text"])


def test_the_splits_of_a_folder_stay_as_they_are(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train.jsonl").write_text(rows(40))
    (folder / "test.jsonl").write_text(rows(3))
    train, held = load(folder)
    assert (len(train), len(held)) == (40, 3)


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("rows.txt", {}, "its name ends in none of .json, .jsonl, .csv, .parquet."),
        ("rows.jsonl", {"streaming": True}, "a stream cannot be split, and it has no split 'test'."),
        ("broken.jsonl", {}, "broken.jsonl cannot be loaded: "),
    ],
)
def test_what_cannot_be_loaded_is_refused(name, settings, says, tmp_path):
    (tmp_path / name).write_text("{" if name.startswith("broken") else rows(4))
    with pytest.raises(MisconfigurationException) as caught:
        load(tmp_path / name, **settings)
    assert says in str(caught.value)
    assert str(caught.value).endswith("Give another.")


def test_a_split_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    (tmp_path / "test.jsonl").write_text(rows(4))
    with pytest.raises(MisconfigurationException, match="it has no split 'other', but train"):
        load_splits(str(tmp_path / "test.jsonl"), None, "other", "test", seed=0, instead="Give another.")


@pytest.mark.parametrize("name", ["/no/file.jsonl", "./no", "~/no", "a/b/c"])
def test_a_path_to_nothing_is_refused_without_asking_the_hub(name):
    with pytest.raises(MisconfigurationException, match=r"does not exist\. Name a file, a folder or a dataset\."):
        require_dataset(name)


def test_a_name_on_the_hub_is_taken():
    require_dataset("trl-lib/Capybara")
    require_dataset(None)
