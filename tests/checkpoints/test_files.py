"""Files of a checkpoint: read without running code, and brought to the disk."""

from __future__ import annotations

import json
import os
import sys

import pytest
import torch
from safetensors.torch import save_file

from mps_trainer import MisconfigurationException
from mps_trainer.checkpoints import manifest
from mps_trainer.checkpoints.state import read_state
from mps_trainer.checkpoints.storage import files
from mps_trainer.checkpoints.storage.files import damaged, read_safetensors, read_tensors
from mps_trainer.random_state import rng_state, set_rng


def test_tensors_are_read_as_they_were_written(tmp_path):
    save_file({"a": torch.arange(3)}, tmp_path / "a.safetensors")
    torch.save({"a": torch.arange(3)}, tmp_path / "a.pt")
    assert torch.equal(read_safetensors(str(tmp_path / "a.safetensors"))["a"], torch.arange(3))
    assert torch.equal(read_tensors(str(tmp_path / "a.pt"), required=["a"])["a"], torch.arange(3))


@pytest.mark.parametrize(("name", "read"), [("a.safetensors", read_safetensors), ("a.pt", read_tensors)])
def test_a_damaged_file_is_named_with_the_reason(tmp_path, name, read):
    path = tmp_path / name
    path.write_bytes(b"\x05\x00\x00\x00\x00\x00\x00\x00nothing")
    with pytest.raises(MisconfigurationException) as refused:
        read(str(path))
    said = str(refused.value)
    assert said.startswith(f"{path} is ")
    assert said.endswith(". Resume from another checkpoint.")
    assert refused.value.__cause__ is not None
    if name == "a.safetensors":
        why = str(refused.value.__cause__).splitlines()[0]
        assert said == f"{path} is damaged and cannot be read: {why}. Resume from another checkpoint."


def test_a_file_that_lacks_something_says_what(tmp_path):
    torch.save([1], tmp_path / "a.pt")
    with pytest.raises(MisconfigurationException, match=r"cannot be read: a is missing\. Resume"):
        read_tensors(str(tmp_path / "a.pt"), required=["a"])


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (OSError(5, "Input/output error"), "Input/output error"),
        (ValueError("first line.\nsecond line"), "first line"),
        (ValueError(), "ValueError"),
        (ValueError("x" * 300), "x" * 200),
    ],
)
def test_the_reason_is_one_short_line(error, why):
    message = f"some/file is damaged and cannot be read: {why}. Resume from another checkpoint."
    assert str(damaged("some/file", error)) == message


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "8"])
def test_a_batch_size_that_is_none_is_refused(tmp_path, size):
    state = {"global_step": 1, "epoch": 0.5, "log_history": [], "train_batch_size": size}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    with pytest.raises(MisconfigurationException, match=r"train_batch_size is .*, and a whole number of at least 1"):
        read_state(str(tmp_path))
    (tmp_path / "trainer_state.json").write_text(json.dumps({**state, "train_batch_size": 1}))
    assert read_state(str(tmp_path))["train_batch_size"] == 1


def test_a_mac_is_asked_to_empty_the_drives_cache(tmp_path, monkeypatch):
    import fcntl

    asked = []
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda file, command: asked.append((os.fstat(file).st_ino, command)))
    monkeypatch.setattr(os, "fsync", lambda descriptor: asked.append("fsync"))
    (tmp_path / "file").write_text("x")
    files.flush(str(tmp_path / "file"))
    assert asked == [((tmp_path / "file").stat().st_ino, 51)]


def test_a_file_system_that_cannot_do_so_is_asked_for_less(tmp_path, monkeypatch):
    import fcntl

    def refuse(descriptor, command):
        raise OSError(25, "Inappropriate ioctl for device")

    asked = []
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    monkeypatch.setattr(os, "fsync", lambda descriptor: asked.append(os.fstat(descriptor).st_ino))
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "file").write_text("x")
    files.flush_tree(str(tmp_path))
    places = [tmp_path, tmp_path / "inner", tmp_path / "inner" / "file"]
    assert sorted(asked) == sorted(place.stat().st_ino for place in places)


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_the_generator_of_a_device_is_set_where_there_is_one(monkeypatch, kind):
    state, came = {**rng_state(), kind: torch.ones(3)}, []
    module = torch.cuda if kind == "cuda" else torch.mps
    available = torch.cuda if kind == "cuda" else torch.backends.mps
    monkeypatch.setattr(module, "set_rng_state", came.append)
    monkeypatch.setattr(available, "is_available", lambda: False)
    set_rng(state)
    assert came == []
    monkeypatch.setattr(available, "is_available", lambda: True)
    set_rng({name: value for name, value in state.items() if name != kind})
    assert came == []
    set_rng(state)
    assert [value.tolist() for value in came] == [[1.0, 1.0, 1.0]]


def test_an_index_of_weights_without_a_manifest_has_to_be_one(make_checkpoint):
    folder = make_checkpoint(5, listed=False)
    (folder / "model.safetensors.index.json").write_text("{}")
    assert manifest.fault(str(folder)) == "model.safetensors.index.json is damaged"
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    assert manifest.fault(str(folder)) is None


def test_a_file_of_no_tensors_is_whole(make_checkpoint):
    folder = make_checkpoint(5, listed=False)
    save_file({}, folder / "model.safetensors")
    assert manifest.fault(str(folder)) is None


def test_a_manifest_says_its_version_and_takes_names_of_every_alphabet(make_checkpoint):
    folder = make_checkpoint(5)
    (folder / "größe.txt").write_text("x")
    manifest.renew(str(folder), 5)
    written = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert (written["version"], written["step"]) == (1, 5)
    assert "größe.txt" in written["files"]
    assert manifest.fault(str(folder)) is None
