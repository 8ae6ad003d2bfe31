"""Tests which settings file is used, and that a file is written completely or not at all."""

import os
from pathlib import Path
from unittest import mock

import pytest
import yaml

from mps_trainer.launching.config_file import LoadedSettings, in_force, load, load_target, write
from tests.conftest import refusal

SETTINGS = {"device": "cpu", "mixed_precision": "no", "mps_fallback": True, "num_processes": 2, "memory_fraction": 0.5}

# 9 lists of 9 lists ...: some hundred bytes that would be 9**12 numbers if they were written out
LAUGHS = "a0: &a0 [1, 1]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 13))
MERGED = "a0: &a0 {k0: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 30))


def test_load_returns_what_write_wrote(tmp_path):
    path = tmp_path / "new" / "folder" / "config.yaml"
    write(SETTINGS, path)
    assert load(path) == LoadedSettings(SETTINGS, path)
    assert os.listdir(path.parent) == ["config.yaml"]
    assert path.read_text().startswith("# Settings of `mps-trainer launch`")


def test_write_adds_the_defaults(tmp_path):
    write({}, tmp_path / "c.yaml")
    values = {"device": "auto", "mixed_precision": "no", "mps_fallback": False, "num_processes": 1}
    assert yaml.safe_load((tmp_path / "c.yaml").read_text()) == {**values, "memory_fraction": None}


def test_load_of_an_empty_file_sets_nothing(tmp_path):
    (tmp_path / "c.yaml").write_text("# later\n")
    assert load(tmp_path / "c.yaml").settings == {}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"device: [mps", "line 1, column 13"),
        (b"device: mps\n\tnum_processes: 1", "line 2, column 1"),
        (b"\xff\xfe\x00", "can't decode"),
        (b"a: !!python/object/apply:os.system ['touch ran']", "line 1, column 4"),
        (b"[" * 1500, "maximum recursion depth exceeded"),
        (LAUGHS.encode(), "its aliases expand to more than "),
        (MERGED.encode(), "its aliases expand to more than "),
        (f"? {{{LAUGHS.replace(chr(10), ', ')}}}\n: 1".encode(), "its aliases expand to more than "),
        (b"device: &a [*a]", "its aliases expand to more than "),
        (b"num_processes: 0x" + b"f" * 40_000, "num_processes=<a number of 160000 bits>"),
        (b"mps_fallback: 0x" + b"f" * 40_000, "mps_fallback=<a number of 160000 bits>"),
        (b"? 0x" + b"f" * 40_000 + b"\n: 1", "has an unknown key <a number of 160000 bits>"),
        (b"- device\n- mps", "has a list instead of lines"),
        (b"#" * 50_001, "more than 50,000 bytes"),
        (b"distributed_type: NO\nnum_processes: [1]", "num_processes=[1]"),
    ],
    ids=lambda value: value[:20],
)
def test_a_file_that_cannot_be_read_is_refused_and_kept(tmp_path, monkeypatch, content, says):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    for attempt in (load, load_target):
        refused = refusal(attempt, path)
        assert says in refused
        assert str(path) in refused
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["c.yaml"]


def test_in_force_of_an_unreadable_home_folder_is_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("pathlib.Path.stat", mock.Mock(side_effect=PermissionError(13, "Permission denied")))
    assert in_force(None, {"XDG_CONFIG_HOME": str(tmp_path), "HF_HOME": str(tmp_path)}) == LoadedSettings()


@pytest.mark.parametrize("failing", ["write_text", "replace"])
def test_write_to_a_full_disk_keeps_the_old_file(tmp_path, monkeypatch, failing):
    path = tmp_path / "c.yaml"
    write(SETTINGS, path)
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Path, failing, mock.Mock(side_effect=OSError(28, "No space left on device")))
        assert "cannot be written: No space left on device" in refusal(write, {"device": "mps"}, path)
    assert os.listdir(tmp_path) == ["c.yaml"]
    assert path.read_bytes() == before


def test_write_keeps_a_link(tmp_path):
    (tmp_path / "dotfiles").mkdir()
    (tmp_path / "c.yaml").symlink_to(tmp_path / "dotfiles" / "real.yaml")
    write(SETTINGS, tmp_path / "c.yaml")
    assert (tmp_path / "c.yaml").is_symlink()
    assert load(tmp_path / "dotfiles" / "real.yaml").settings == SETTINGS
