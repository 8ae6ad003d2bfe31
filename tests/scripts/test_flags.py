"""Flags are refused in one line that says where to look."""

import os
from dataclasses import dataclass

import pytest

from mps_trainer import MisconfigurationException
from mps_trainer.scripts.flags import OneLineParser, given
from mps_trainer.utils import bounded_file


@dataclass
class Settings:
    size: int = 1

    def __post_init__(self):
        if self.size < 1:
            raise ValueError("size is below 1.")


@pytest.mark.parametrize(("name", "text"), [("a.json", '{"size": 3}'), ("a.yaml", "size: 3\n")])
def test_a_file_of_arguments_stands_for_flags(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    words = [str(tmp_path / name)]
    assert OneLineParser((Settings,), prog="train.py").parse(words, size=2) == (Settings(3),)
    assert given(words) == {"size"}
    (tmp_path / name).write_text(text.replace("size", "sise"))
    with pytest.raises(MisconfigurationException, match="sise"):
        OneLineParser((Settings,), prog="train.py").parse(words)


def test_a_pipe_in_place_of_a_file_of_arguments_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(bounded_file, "PATIENCE", 0.1)
    os.mkfifo(tmp_path / "a.json")
    with pytest.raises(MisconfigurationException, match="nothing was written to it"):
        OneLineParser((Settings,), prog="train.py").parse([str(tmp_path / "a.json")])


def test_defaults_of_the_script_apply_where_nothing_is_given(tmp_path):
    assert OneLineParser((Settings,), prog="train.py").parse([], size=2) == (Settings(2),)
    assert OneLineParser((Settings,), prog="train.py").parse(["--size", "3"], size=2) == (Settings(3),)


def test_what_was_given_goes_by_the_names_of_fields():
    assert given(["--max-steps=3", "--do_train", "value", "-x"]) == {"max_steps", "do_train"}
