"""Files and pipes that users name are read up to a size, and a pipe without a writer is not waited for."""

import contextlib
import os
import threading
from pathlib import Path

import pytest

from mps_trainer import TrainingArguments
from mps_trainer.devices.recorded import read_facts
from mps_trainer.launching.config_file import load, load_target
from mps_trainer.reports.record import is_foreign, read
from mps_trainer.scripts.flags import OneLineParser
from mps_trainer.utils import bounded_file
from mps_trainer.utils.bounded_file import read_bytes
from tests.conftest import refusal


def test_a_file_or_device_is_read_up_to_its_bound_and_a_folder_refused(tmp_path):
    path = tmp_path / "a"
    path.write_bytes("\ufeffä".encode())
    assert read_bytes(path, 5) == "\ufeffä".encode()
    assert read_bytes(os.devnull, 10) == b""
    for path_of, most_bytes in ((path, 4), ("/dev/zero", 10)):
        assert f"it has more than {most_bytes} bytes" in refusal(read_bytes, path_of, most_bytes, kind=ValueError)
    assert refusal(read_bytes, tmp_path / "gone", 10, kind=FileNotFoundError)
    assert refusal(read_bytes, tmp_path, 10, kind=IsADirectoryError)


READERS = {
    "launch": (lambda path: load(Path(path)), "num_processes: 1"),
    "doctor": (read_facts, '{"system": "Linux"}'),
    "report": (read, '{"log_history": []}'),
    "fsdp_config": (lambda path: TrainingArguments(fsdp=True, fsdp_config=path), "{}"),
    "accelerator_config": (lambda path: TrainingArguments(accelerator_config=path), "{}"),
    "a script": (lambda path: OneLineParser((TrainingArguments,), prog="train.py").parse([path]), '{"seed": 1}'),
}


@pytest.mark.parametrize("name", READERS)
def test_nobody_waits_for_a_pipe_without_a_writer(tmp_path, monkeypatch, name):
    monkeypatch.setattr(bounded_file, "PATIENCE", 0.1)
    path = str(tmp_path / "pipe.json")
    os.mkfifo(path)
    assert "nothing was written to it for 0.1 seconds" in refusal(READERS[name][0], path)


def test_nobody_waits_for_the_rest_of_what_a_writer_began(monkeypatch):
    monkeypatch.setattr(bounded_file, "PATIENCE", 0.1)
    end, writer = os.pipe()
    os.write(writer, b"begun")
    assert "nothing was written to it" in refusal(read_bytes, f"/dev/fd/{end}", 10, kind=ValueError)
    os.close(writer)
    os.close(end)


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_read(tmp_path, name):
    read, content = READERS[name]
    read(written_later(tmp_path / "pipe.json", content.encode()))


def test_a_pipe_is_read_up_to_the_same_bound(tmp_path):
    content = b"x" * 100_000  # more than a pipe holds
    assert read_bytes(written_later(tmp_path / "pipe", content), 100_000) == content
    path = written_later(tmp_path / "another", content)
    assert "it has more than 99,999 bytes" in refusal(read_bytes, path, 99_999, kind=ValueError)


def written_later(path, content: bytes) -> str:
    """Returns a pipe to which another thread writes `content` when it is opened."""

    def write() -> None:
        with contextlib.suppress(BrokenPipeError):
            path.write_bytes(content)

    os.mkfifo(path)
    threading.Thread(target=write, daemon=True).start()
    return str(path)


def test_a_pipe_is_no_place_for_settings_nor_a_report_of_ours(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "is a pipe or a device" in refusal(load_target, tmp_path / "pipe")
    assert is_foreign(str(tmp_path / "pipe"))
