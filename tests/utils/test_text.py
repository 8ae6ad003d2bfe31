"""Tests the texts of messages of one line."""

import pytest

from mps_trainer.utils.refusal import refuse, wants_traceback
from mps_trainer.utils.text import as_line, did_you_mean, first_line, sentence, shown


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("two\nlines\r\n and\x85more\u2028", "two lines and more"),
        ("\x1b[2J\x07", "\\x1b[2J\\x07"),
        ("half \ud800", "half \\ud800"),
        ("épée 日本", "épée 日本"),
        ("x" * 5000, "x" * 997 + "..."),
    ],
)
def test_as_line_is_one_line_that_a_terminal_can_show(text, line):
    assert as_line(text) == line


@pytest.mark.parametrize(
    ("error", "first", "whole"),
    [
        (ValueError("no such\nthing"), "no such", "no such thing."),
        (ValueError("Done."), "Done.", "Done."),
        (KeyError(), "KeyError", "KeyError."),
    ],
)
def test_error_without_a_message_is_its_type(error, first, whole):
    assert (first_line(error), sentence(error)) == (first, whole)


def test_shown_is_short_whatever_the_value():
    assert shown("a") == "'a'"
    assert shown({"a": [1, None]}, 60) == "{'a': [1, None]}"
    assert shown(10**5000) == "<a number of 16610 bits>"
    nested = [0]
    for _ in range(40):
        nested = [nested] * 40
    for value in (nested, "x" * 5000, [10**5000] * 50, {"x" * 5000: 1}, object):
        assert 0 < len(shown(value, 60)) <= 60


def test_did_you_mean_names_the_nearest_word():
    assert did_you_mean("--bf61", ["--bf16", "--fp16"]) == " Did you mean --bf16?"
    assert did_you_mean("--else", ["--bf16"]) == ""


@pytest.mark.parametrize(("value", "wanted"), [(None, False), ("", False), ("0", False), ("1", True), ("true", True)])
def test_the_variable_asks_for_a_traceback(monkeypatch, capsys, value, wanted):
    monkeypatch.delenv("MPS_TRAINER_TRACEBACK", raising=False)
    if value is not None:
        monkeypatch.setenv("MPS_TRAINER_TRACEBACK", value)
    assert wants_traceback() is wanted
    assert refuse("program", ValueError("wrong"), status=7) == 7
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "program: error: wrong"
    assert len(lines) == (2 if wanted else 1)  # an error that was never raised has no frames
