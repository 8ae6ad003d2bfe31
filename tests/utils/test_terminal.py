"""Output that cannot be written is dropped; bars are drawn on terminals alone."""

import os
import sys
from types import SimpleNamespace

import pytest

from mps_trainer.utils.terminal import LossyStream, lost_output_ignored, on_terminal
from tests.conftest import refusal


def without_reader():
    """A stream to a pipe whose reader is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    return open(writer, "w")


@pytest.mark.parametrize("end", ["close", "detach"])
def test_what_a_closed_stream_does_not_take_is_dropped(monkeypatch, end):
    stream = without_reader()
    kept = getattr(stream, end)()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    with lost_output_ignored():
        print("lost", flush=True)
        sys.stderr.writelines(["lost"])
        assert not on_terminal()
    assert not on_terminal()
    assert kept is None or not kept.closed


@pytest.mark.parametrize("number", [{}, {"fileno": lambda: None}])
def test_a_terminal_of_a_scripts_own_needs_no_number(monkeypatch, number):
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(closed=False, isatty=lambda: True, **number))
    monkeypatch.setenv("TERM", "xterm")
    assert on_terminal()


def test_a_stream_of_write_and_flush_alone_is_no_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=len, flush=lambda: None))
    with lost_output_ignored():
        assert not on_terminal()
    LossyStream(SimpleNamespace(write=len)).flush()  # it may lack this as well


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_disk_keeps_its_descriptor(monkeypatch):
    stream = open("/dev/full", "w")  # noqa: SIM115
    before = os.fstat(stream.fileno()).st_rdev
    monkeypatch.setattr(sys, "stdout", stream)
    with lost_output_ignored():
        print("lost", flush=True)
    assert os.fstat(stream.fileno()).st_rdev == before
    assert "No space left" in refusal(stream.close, kind=OSError)


def test_letters_without_an_encoding_are_escaped_and_other_errors_and_streams_stay(monkeypatch, capsys, tmp_path):
    with open(tmp_path / "ascii", "w", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with lost_output_ignored():
            print("é")
            with pytest.raises(TypeError):
                sys.stdout.write(b"")
    assert (tmp_path / "ascii").read_bytes() == rb"\xe9" + os.linesep.encode()
    monkeypatch.setattr(sys, "stdout", None)
    with lost_output_ignored():
        print("nowhere")
        assert sys.stdout is None
        sys.stdout = mine = object()
    assert sys.stdout is mine


def test_a_tracker_that_replaces_write_keeps_what_it_sees(monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    with lost_output_ignored():
        sys.stdout.write = seen.append
    print("metrics")
    assert "".join(seen) == "metrics\n"
