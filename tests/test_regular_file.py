"""Files that users name are read up to a size, and only if they are files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mps_trainer import MisconfigurationException, TrainingArguments
from mps_trainer.devices.recorded import read_facts
from mps_trainer.launching.config_file import check_target, load
from mps_trainer.regular_file import read_bytes, read_text
from mps_trainer.reports.record import is_foreign, load_json


def test_a_file_is_read_up_to_its_bound(tmp_path):
    path = tmp_path / "a"
    path.write_bytes("\ufeffä".encode())
    assert read_bytes(path, 5) == "\ufeffä".encode()
    assert read_text(path, 5, "utf-8-sig") == "ä"
    with pytest.raises(ValueError, match="it has more than 4 bytes"):
        read_bytes(path, 4)
    with pytest.raises(UnicodeDecodeError):
        read_text(path, 5, "ascii")


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="this system has no /proc")
def test_a_file_that_says_it_is_empty_has_the_same_bound():
    assert os.stat("/proc/self/status").st_size == 0
    assert read_bytes("/proc/self/status", 100_000).startswith(b"Name:")
    with pytest.raises(ValueError, match="it has more than 10 bytes"):
        read_bytes("/proc/self/status", 10)


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "gone", 10)
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path, 10)
    with pytest.raises(ValueError, match="it is not a regular file"):
        read_bytes(os.devnull, 10)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes among its files")
@pytest.mark.parametrize(
    "read",
    [
        load,
        check_target,
        read_facts,
        load_json,
        lambda path: TrainingArguments(fsdp=True, fsdp_config=path),
        lambda path: TrainingArguments(accelerator_config=path),
    ],
    ids=["launch", "config", "doctor", "report", "fsdp_config", "accelerator_config"],
)
def test_nobody_waits_for_a_pipe(tmp_path, read):
    path = str(tmp_path / "pipe")
    os.mkfifo(path)
    with pytest.raises(MisconfigurationException, match="not a regular file"):
        read(Path(path) if read in (load, check_target) else path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes among its files")
def test_a_pipe_is_not_a_report_of_ours(tmp_path):
    os.mkfifo(tmp_path / "report.html")
    assert is_foreign(str(tmp_path / "report.html"))
