"""Tests the message of a command that ends with an error."""

import pytest

from mps_trainer.utils.refusal import as_line, refuse, sentence, wants_traceback


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
def test_any_text_is_one_line_that_a_terminal_can_show(text, line):
    assert as_line(text) == line


def test_a_message_is_a_sentence_and_an_error_without_one_is_its_type():
    assert sentence(ValueError("no such\nthing")) == "no such thing."
    assert sentence(ValueError("Done.")) == "Done."
    assert sentence(KeyError()) == "KeyError."


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
