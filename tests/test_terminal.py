"""Lines of native code that nobody asked for are kept from the terminal, and no others."""

from __future__ import annotations

import os
import tempfile

import pytest

from mps_trainer.terminal import without_lines


def test_lines_with_the_text_never_come_and_others_come_afterwards(capfd):
    with without_lines("not wanted"):
        os.write(2, b"[W1 native.cpp] this is not wanted. (operator)\n")
        os.write(2, b"[W1 native.cpp] this is.\n")
        assert capfd.readouterr().err == ""
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "[W1 native.cpp] this is.\nafter\n"


def test_what_was_written_before_an_error_comes(capfd):
    def fails():
        with without_lines("not wanted"):
            os.write(2, b"before\n")
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert capfd.readouterr().err == "before\n"


def test_without_a_place_to_keep_lines_they_all_come(capfd, monkeypatch):
    def nowhere():
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "TemporaryFile", nowhere)
    with without_lines("not wanted"):
        os.write(2, b"not wanted\n")
    assert capfd.readouterr().err == "not wanted\n"
