"""The file of a record, and what is made of other files where there is none."""

import json
import os
import re
from unittest import mock

import pytest

from mps_trainer.reports.pages import run_page
from mps_trainer.reports.record import (
    GENERATOR,
    LARGEST,
    NAME,
    PAGE,
    RunRecord,
    is_foreign,
    read,
    record_of,
    replace,
    write,
)
from tests.conftest import refusal


def test_what_is_written_is_read_again(record, tmp_path):
    write(record, str(tmp_path))
    assert read(str(tmp_path / NAME)) == record
    assert os.listdir(tmp_path) == [NAME]


def test_a_file_that_could_not_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    path = str(tmp_path / "file")
    before = json.dumps({"generator": GENERATOR})
    replace(path, before)

    monkeypatch.setattr(os, "replace", mock.Mock(side_effect=OSError(28, "No space left on device")))
    assert "No space left" in refusal(replace, path, "after", kind=OSError)
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == before


@pytest.mark.parametrize("content", [b"", b'{"format": 1, "name": "mine"}', b"\xff\xfe", None], ids=str)
def test_a_file_or_folder_of_the_user_is_foreign(tmp_path, content):
    path = tmp_path / PAGE
    path.mkdir() if content is None else path.write_bytes(content)
    assert is_foreign(str(path))
    assert not is_foreign(str(tmp_path / "gone"))


DAMAGE = {
    "no JSON": ("{", "Expecting property name enclosed in double quotes: line 1 column 2"),
    "bytes": (b"\xff\xfe\x00", "cannot be read: 'utf-16-le' codec can't decode byte 0x00"),
    "nested": ("[" * 100_000, "maximum recursion depth exceeded"),
    "a list": ("[]", "Expected `object`, got `array`"),
    "another format": ('{"format": 7}', "its format is 7, and this release reads 1"),
    "a word for a time": ('{"format": 1, "name": "x", "outcome": {}, "events": [{"kind": "a", "step": "b"}]}', "step"),
    "no outcome": ('{"format": 1, "name": "x"}', "missing required field `outcome`"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_record_is_told_in_a_line(tmp_path, damage):
    content, says = DAMAGE[damage]
    (tmp_path / NAME).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert says in refusal(record_of, str(tmp_path))


def test_any_part_of_a_record_may_be_missing(data):
    for name in data.keys() - {"format", "name", "outcome"}:
        run_page(RunRecord.from_dict({key: value for key, value in data.items() if key != name}))


STATE = {
    "global_step": 4, "max_steps": 4, "train_batch_size": 8, "best_metric": 0.6, "best_global_step": 4,
    "log_history": [{"loss": 0.5, "step": 2}, {"eval_loss": 0.6, "step": 4}, {"train_runtime": 1.0, "step": 4}],
}  # fmt: skip


def test_a_checkpoint_of_transformers_tells_the_curves(tmp_path):
    for step, steps in ((2, 1), (10, 3)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        state = {**STATE, "global_step": step, "log_history": STATE["log_history"][:steps]}
        (folder / "trainer_state.json").write_text(json.dumps(state))
    record = record_of(str(tmp_path))
    assert record.source == os.path.join("checkpoint-10", "trainer_state.json")
    assert (record.name, record.outcome["step"], record.outcome["kind"]) == (tmp_path.name, 10, "finished")
    assert len(record.history) == 3
    assert record_of(str(tmp_path / "checkpoint-2")).outcome == {"kind": "unknown", "step": 2, "max_steps": 4}
    (tmp_path / "trainer_state.json").write_text(json.dumps(STATE))
    assert record_of(str(tmp_path)).source == "trainer_state.json"


@pytest.mark.parametrize("name", [NAME, "trainer_state.json"])
def test_a_checkpoint_of_a_run_that_has_gone_on_is_newer_than_the_record(tmp_path, name):
    record = RunRecord("a", {"kind": "finished", "step": 4}).to_dict()
    (tmp_path / name).write_text(json.dumps(record if name == NAME else STATE))
    (tmp_path / "checkpoint-10").mkdir()
    checkpoint = tmp_path / "checkpoint-10" / "trainer_state.json"
    checkpoint.write_text(json.dumps({**STATE, "global_step": 10}))
    reached = {}
    for age in (-9, 9):  # a longer run wrote it before, or the resumed run did
        changed = os.path.getmtime(tmp_path / name) + age
        os.utime(checkpoint, (changed, changed))
        reached[age] = record_of(str(tmp_path)).outcome["step"]
    assert reached == {-9: 4, 9: 10}
    if name == NAME:
        checkpoint.write_text("{")
        os.utime(checkpoint, (changed, changed))
        assert record_of(str(tmp_path)).outcome["step"] == 4  # the later one is damaged


def test_a_run_that_was_killed_has_ended_where_transformers_went_on(tmp_path):
    path, folder, end = tmp_path / NAME, tmp_path / "checkpoint-10", tmp_path / "trainer_state.json"
    path.write_text(json.dumps(RunRecord("a", {"kind": "running", "step": 4}).to_dict()))
    folder.mkdir()
    (folder / "trainer_state.json").write_text(json.dumps({**STATE, "global_step": 10}))
    os.utime(path, (1000, 1000))
    assert record_of(str(tmp_path)).outcome == {"kind": "finished", "step": 10, "max_steps": 4}
    (folder / "manifest.json").touch()  # this Trainer saved it after the record, and was killed
    assert record_of(str(tmp_path)).outcome == {"kind": "running", "step": 4}
    end.write_text(json.dumps({**STATE, "global_step": 12}))
    assert record_of(str(tmp_path)).outcome["step"] == 12
    os.utime(end, (999, 999))
    assert record_of(str(tmp_path)).outcome["step"] == 4


@pytest.mark.parametrize("state", ["[]", "{}", '{"log_history": 3}'])
def test_a_damaged_state_is_told_in_a_line(tmp_path, state):
    (tmp_path / "trainer_state.json").write_text(state)
    assert "it has no log_history" in refusal(record_of, str(tmp_path))


def test_a_record_that_is_too_large_is_refused_unread(tmp_path):
    (tmp_path / NAME).touch()
    os.truncate(tmp_path / NAME, LARGEST + 1)  # takes no space
    assert re.search(r"it has .* bytes", refusal(record_of, str(tmp_path)))
    os.remove(tmp_path / NAME)
    os.mkfifo(tmp_path / NAME)
    assert "There is no training run in" in refusal(record_of, str(tmp_path))
