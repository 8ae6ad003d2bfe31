"""Files of a checkpoint: read without running code, and brought to the disk."""

import os
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors.torch import save_file

from mps_trainer import MisconfigurationException
from mps_trainer.checkpoints import files, folders, manifest, schema, tensor_files
from mps_trainer.checkpoints.files import damaged
from mps_trainer.checkpoints.tensor_files import read_safetensors, read_tensors
from tests.conftest import refusal


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
    why = str(refused.value.__cause__).splitlines()[0]
    assert name == "a.pt" or said.startswith(f"{path} is damaged and cannot be read: {why}.")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (OSError(5, "Input/output error"), "Input/output error"),
        (ValueError("first line.\nsecond line"), "first line"),
        (ValueError(), "ValueError"),
        (ValueError("x" * 300), "x" * 200),
        (ValueError("first. "), "first"),
    ],
)
def test_the_reason_is_one_short_line(error, why):
    message = f"some/file is damaged and cannot be read: {why}. Resume from another checkpoint."
    assert str(damaged("some/file", error)) == message


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[1]", "Expected `object`, got `array`"),
        ('{"a": "x"}', "Expected `int`, got `str` - at `$[...]`"),
        ("[" * 100_000, "it is nested too deeply"),
        ('{"a": 1' + "0" * 5000 + "}", "Exceeds the limit (4300 digits)"),
        ("\udcff", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    ],
    ids=["list", "type", "nested", "long", "bytes"],
)
def test_json_file_of_another_type_says_why(tmp_path, text, why):
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    said = refusal(schema.read, str(path), dict[str, int])
    assert said.startswith(f"{path} is damaged and cannot be read: {why}")
    assert said.endswith(". Resume from another checkpoint.")


def test_a_json_file_is_read_up_to_the_largest_size_and_number_of_values(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_text('{"a": [1, {}]}')  # 14 bytes; one comma and three brackets
    monkeypatch.setattr(files, "LARGEST_JSON", 14)
    monkeypatch.setattr(files, "MOST_VALUES", 4)
    assert files.read_json(str(path)) == {"a": [1, {}]}
    monkeypatch.setattr(files, "MOST_VALUES", 3)
    assert "cannot be read: it has more than 3 values" in refusal(files.read_json, str(path))
    monkeypatch.setattr(files, "LARGEST_JSON", 13)
    said = refusal(files.read_json, str(path))
    assert said.startswith(f"{path} is damaged and cannot be read: it has 14 bytes, and 13 are the most that are")


def test_what_is_no_file_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # reading it would wait
    for read in (files.read_json, read_tensors, read_safetensors):
        assert "pipe is damaged and cannot be read: it is not a regular" in refusal(read, str(tmp_path / "pipe"))
        assert "none is damaged and cannot be read: No such file or dir" in refusal(read, str(tmp_path / "none"))


def test_objects_are_read_where_their_kind_is_allowed(tmp_path):
    (tmp_path / "a.pt").write_bytes(b"PK\3\4 and no more")
    assert refusal(read_tensors, str(tmp_path / "a.pt")).startswith(f"{tmp_path / 'a.pt'} is damaged and")
    torch.save({"a": Path("x")}, tmp_path / "a.pt")
    said = refusal(read_tensors, str(tmp_path / "a.pt"))
    assert said == (
        f"{tmp_path / 'a.pt'} is refused: it has something other than tensors and plain values, which could run "
        "code when loaded, or it is damaged. Resume from another checkpoint."
    )
    torch.save({"a": Allowed()}, tmp_path / "a.pt")
    assert isinstance(read_tensors(str(tmp_path / "a.pt"), allowed=[Allowed])["a"], Allowed)


class Allowed:
    pass


def test_tensors_of_a_device_are_read_into_host_memory(tmp_path, mps):
    torch.save({"a": torch.ones(2, device="mps")}, tmp_path / "a.pt")
    assert read_tensors(str(tmp_path / "a.pt"))["a"].device.type == "cpu"


def test_weights_in_a_file_have_its_number_format_and_are_mapped_anew_after_each_block(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_files, "_BLOCK", 16)
    save_file({"a": torch.ones(2, 3, dtype=torch.bfloat16), "b": torch.ones(1)}, tmp_path / "weights.safetensors")
    monkeypatch.setattr(tensor_files, "safe_open", mapped := mock.Mock(wraps=tensor_files.safe_open))
    stored = read_safetensors(str(tmp_path / "weights.safetensors"))  # reads 6 + 4 bytes to see the formats
    assert (stored["a"].dtype, stored["b"].dtype) == (torch.bfloat16, torch.float32)
    for name, mapped_by_then in (("a", 1), ("b", 2)):
        assert bool(torch.zeros(stored[name].shape).copy_(stored[name]).all())
        assert mapped.call_count == mapped_by_then


@pytest.mark.parametrize("refuses", [False, True])
def test_a_mac_is_asked_to_empty_the_drives_cache_or_for_less_where_it_cannot(tmp_path, monkeypatch, refuses):
    import fcntl

    emptied, flushed = [], []

    def empty(file, command):
        if refuses:
            raise OSError(25, "Inappropriate ioctl for device")
        emptied.append((os.fstat(file).st_ino, command))

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", empty)
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.fstat(descriptor).st_ino))
    (tmp_path / "new" / "inner").mkdir(parents=True)
    (tmp_path / "new" / "inner" / "file").write_text("x")
    folders.commit(str(tmp_path / "new"), str(tmp_path / "checkpoint-1"), 1)
    places = [tmp_path, *(tmp_path / "checkpoint-1" / name for name in (".", "inner", "inner/file", manifest.NAME))]
    numbers = {place.stat().st_ino for place in places}
    assert (set(emptied), set(flushed)) == ((set(), numbers) if refuses else ({(n, 51) for n in numbers}, set()))


def test_an_index_of_weights_without_a_manifest_has_to_be_one(make_checkpoint):
    folder = make_checkpoint(5, listed=False)
    (folder / "model.safetensors.index.json").write_text("{}")
    assert manifest.fault(str(folder)) == "model.safetensors.index.json is damaged or truncated"
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    assert manifest.fault(str(folder)) is None
