"""The manifest: what it lists, and every way in which a checkpoint may not be what it lists."""

import json
import os
import re
from unittest import mock

import pytest

from mps_trainer.checkpoints import manifest
from tests.conftest import refusal

FILES = ["inner/vocabulary.txt", "model.safetensors", "optimizer.pt", "trainer_state.json"]


def test_it_lists_every_file_and_allows_later_ones_that_are_regular(make_checkpoint):
    folder = make_checkpoint(5)
    written = json.loads((folder / "manifest.json").read_text())
    assert sorted(written["files"]) == FILES
    # sha256sum of the words in it
    digest = "6899ee404683a14e8c2a03149860df25d67d34d9cd4dae7350cbe91e4b3976be"
    assert written["files"]["inner/vocabulary.txt"] == {"size": 13, "sha256": digest}
    (folder / "notes.txt").write_text("mine")
    assert manifest.fault(str(folder)) is None
    os.mkfifo(folder / "inner" / "pipe")
    assert manifest.fault(str(folder)) == "inner/pipe is not a regular file"


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("found_whole_before", [False, True])
def test_any_listed_file_that_differs_is_named(make_checkpoint, name, found_whole_before):
    folder = make_checkpoint(5)
    if found_whole_before:
        assert manifest.fault(str(folder)) is None
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    differs = f"{name} is not what was saved: its checksum differs from the one in manifest.json"
    assert manifest.fault(str(folder)) == differs
    (folder / name).write_bytes(data[:-1])
    assert manifest.fault(str(folder)) == f"{name} has {len(data) - 1:,} bytes instead of {len(data):,}"
    (folder / name).unlink()
    missing = f"it has no {name}" if name == "trainer_state.json" else f"{name} is missing"
    assert manifest.fault(str(folder)) == missing


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "trainer_state.json"])
@pytest.mark.parametrize("kept", [0, 5, 10, -1])
def test_without_a_manifest_a_file_that_is_cut_off_is_named(make_checkpoint, name, kept):
    folder = make_checkpoint(5, listed=False)
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:kept])
    assert manifest.fault(str(folder)).startswith(f"{name} is ")


def test_it_is_renewed_only_after_a_change_and_keeps_the_number_of_the_save(make_checkpoint):
    folder = make_checkpoint(5, listed=False)
    manifest.write(str(folder), 5, 7, "id:0")
    path = folder / "manifest.json"
    before = path.stat().st_mtime_ns
    assert manifest.fault(str(folder)) is None
    manifest.renew(str(folder), 5)
    assert path.stat().st_mtime_ns == before
    old = folder / "inner" / "vocabulary.txt"
    times = old.stat()
    old.write_text("four")
    os.utime(old, (times.st_atime - 1000, times.st_mtime - 1000))  # a copy may keep its times
    (folder / "optimizer.pt").unlink()
    (folder / "größe.txt").write_text("mine")
    assert manifest.fault(str(folder)) is not None
    manifest.renew(str(folder), 5)
    written = json.loads(path.read_text(encoding="utf-8"))
    assert [written[name] for name in ("version", "step", "save", "run")] == [1, 5, 7, "id:0"]
    assert "größe.txt" in written["files"]
    assert manifest.fault(str(folder)) is None
    path.write_text('{"save": 0}')
    manifest.renew(str(folder), 5)
    assert manifest.entry(str(folder), "save") == 1
    path.unlink()
    manifest.renew(str(folder), 5)
    assert list(folder.glob("manifest.json*")) == []


def header(text: bytes, length: int | None = None, rest: bytes = b"") -> bytes:
    return (len(text) if length is None else length).to_bytes(8, "little") + text + rest


ENTRY = b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'


@pytest.mark.parametrize(
    ("content", "is_whole"),
    [
        (header(b"{}"), True),
        (header(ENTRY.replace(b"{", b'{"__metadata__": {"format": "pt"}, ', 1), rest=b"1234"), True),
        (header(b"nothing"), False),
        (header(b"{}", rest=b"more"), False),
        (header(b'{"a": {}}'), False),
        (header(ENTRY, rest=b"123"), False),
        (header(ENTRY, rest=b"12345"), False),
        (header(b"{}", length=3), False),
        (header(b"{}", length=1 << 40), False),
    ],
)
def test_without_a_manifest_weights_that_do_not_fit_their_header_are_named(make_checkpoint, content, is_whole):
    folder = make_checkpoint(5, listed=False)
    (folder / "model.safetensors").write_bytes(content)
    assert manifest.fault(str(folder)) == (None if is_whole else "model.safetensors is damaged or truncated")


def test_a_file_that_cannot_be_read_is_named_with_the_reason(make_checkpoint, monkeypatch):
    folder = make_checkpoint(5)
    path = str(folder / "optimizer.pt")

    def refuse(error):
        monkeypatch.setattr(manifest, "checksum", mock.Mock(side_effect=error))
        return manifest.fault(str(folder))

    assert refuse(OSError(5, "Input/output error", path)) == f"{path} cannot be read: Input/output error"
    assert refuse(OSError(5, "Input/output error")) == f"{folder} cannot be read: Input/output error"
    assert refuse(OSError("it is gone")) == f"{folder} cannot be read: it is gone"


def test_a_checkpoint_that_was_found_whole_is_read_again_only_after_a_change(make_checkpoint, monkeypatch):
    folder = make_checkpoint(5)
    read, checksum = [], manifest.checksum
    monkeypatch.setattr(manifest, "checksum", lambda path: (read.append(os.path.basename(path)), checksum(path))[1])
    assert manifest.fault(str(folder)) is None
    assert len(read) == len(FILES)
    assert manifest.fault(str(folder)) is None
    assert len(read) == len(FILES)
    (folder / "optimizer.pt").touch()
    assert manifest.fault(str(folder)) is None
    assert len(read) == 2 * len(FILES)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.safetensors", True),
        ("model-00001-of-00002.safetensors", True),
        ("pytorch_model.bin", True),
        ("model.safetensors.index.json", True),
        ("my_model.safetensors", False),
        ("model.safetensors.tmp", False),
        ("adapter_model.safetensors", False),
    ],
)
def test_weights_are_known_by_their_names(name, expected):
    assert manifest.is_weights(name) is expected


def test_safetensors_go_before_pickles_and_one_file_before_an_index(tmp_path):
    assert manifest.weight_files(str(tmp_path)) == []
    index = json.dumps(
        {"weight_map": {"b": "model-2.safetensors", "a": "model-1.safetensors", "c": "model-1.safetensors"}}
    )
    names = ["pytorch_model.bin.index.json", "pytorch_model.bin", "model.safetensors.index.json", "model.safetensors"]
    shards = ["model-1.safetensors", "model-2.safetensors"]
    for name, expected in zip(names, [shards, ["pytorch_model.bin"], shards, ["model.safetensors"]], strict=True):
        (tmp_path / name).write_text(index)
        assert manifest.weight_files(str(tmp_path)) == expected


@pytest.mark.parametrize(
    "weight_map",
    [None, [], {}, {"a": 1}, {"a": "../model.safetensors"}, {"a": "/model.safetensors"}, {"a": "model.txt"}],
    ids=str,
)
def test_index_that_leads_elsewhere_is_refused(tmp_path, weight_map):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({} if weight_map is None else {"weight_map": weight_map}))
    said = refusal(manifest.weight_files, str(tmp_path))
    assert re.search(f"{index} is damaged and cannot be read: .*weight_map", said)
