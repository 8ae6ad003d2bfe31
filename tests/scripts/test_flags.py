"""Flags are refused in one line that says where to look."""

from dataclasses import dataclass

import pytest

from mps_trainer.scripts.flags import OneLineParser, given
from tests.conftest import refusal


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
    assert "'sise' is neither" in refusal(OneLineParser((Settings,), prog="train.py").parse, words)


def test_what_was_given_goes_by_the_names_of_fields():
    assert given(["--max-steps=3", "--do_train", "value", "-x"]) == {"max_steps", "do_train"}


@pytest.mark.parametrize(("word", "says"), [("--sise=3", "Did you mean --size?"), ("a.json", "must be the only word")])
def test_an_unknown_word_is_named_before_the_value_that_is_missing(word, says):
    parser = OneLineParser((Settings,), prog="train.py")
    assert says in refusal(parser.parse, [word, "--size", "0"])
