"""The file of a record, and what is made of other files where there is none."""

from __future__ import annotations

import json
import os

import pytest

from mps_trainer import MisconfigurationException
from mps_trainer.reports.record import GENERATOR, LARGEST, NAME, RunRecord, read, record_of, replace, write


def test_what_is_written_is_read_again(record, tmp_path):
    write(record, str(tmp_path))
    assert read(str(tmp_path)) == record
    assert os.listdir(tmp_path) == [NAME]


def test_a_file_that_could_not_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    path = str(tmp_path / "file")
    before = json.dumps({"generator": GENERATOR})
    replace(path, before)

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        replace(path, "after")
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == before


def of_event(**values):
    event = {"kind": "begin", "step": 0, "seconds": 0.0, "text": "", "took": 0.0, **values}
    return json.dumps({"format": 1, "name": "x", "outcome": {}, "events": [event]})


def of_session(**values):
    session = {"first_step": 0, "offset": 0, "begun": 0, "seconds": 1, "marks": [], **values}
    return json.dumps({"format": 1, "name": "x", "outcome": {}, "sessions": [session]})


OTHER = "its sessions or events are not as they were written"
DAMAGE = {
    "no JSON": ("{", "it is not JSON"),
    "cut off": (json.dumps({"format": 1, "name": "x"})[:-5], "it is not JSON"),
    "bytes": (b"\xff\xfe\x00", "it is not JSON"),
    "nested": ("[" * 100_000, "it is nested too deeply"),
    "a list": ("[]", "it holds no JSON object"),
    "another format": ('{"format": 7}', "its format is 7, and this release reads 1"),
    "no outcome": ('{"format": 1, "name": "x"}', "it names no run and no outcome"),
    "a number for a list": (
        '{"format": 1, "name": "x", "outcome": {}, "events": 3}',
        "its events is int and not list",
    ),
    "an event of another kind": (
        '{"format": 1, "name": "x", "outcome": {}, "events": [{"what": 3}]}',
        "its sessions or events are not as they were written",
    ),
    **{f"an event of kind {kind}": (of_event(kind=kind), OTHER) for kind in (3, None, [1], {"a": 1}, True)},
    **{f"an event with text {text}": (of_event(text=text), OTHER) for text in (3, None, ["a"], {})},
    **{f"an event at step {step}": (of_event(step=step), OTHER) for step in ("a", None, True, 10**400, float("nan"))},
    **{f"a session of {begun} s": (of_session(begun=begun), OTHER) for begun in ("a", None, 10**400)},
    "an event that is a list": ('{"format": 1, "name": "x", "outcome": {}, "events": [[]]}', OTHER),
    "a mark that is text": (
        '{"format": 1, "name": "x", "outcome": {}, "sessions": [{"first_step": 0, "offset": 0, "begun": 0, '
        '"seconds": 1, "marks": [["a", 1, 2, 3, 4, 5]]}]}',
        "its sessions or events are not as they were written",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_record_is_told_in_a_line(tmp_path, damage):
    content, says = DAMAGE[damage]
    (tmp_path / NAME).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(MisconfigurationException) as error:
        record_of(str(tmp_path))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_any_part_of_a_record_may_be_missing_or_of_another_shape(data):
    from mps_trainer.reports.pages import run_page

    for name in data:
        if name in ("format", "name", "outcome"):
            continue
        run_page(RunRecord.from_dict({key: value for key, value in data.items() if key != name}))
        if isinstance(data[name], dict):
            for key in data[name]:
                for other in (None, 7, "text", [], {}, [1], {"a": "b"}):
                    changed = {**data, name: {**data[name], key: other}}
                    run_page(RunRecord.from_dict(changed))


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
    assert record_of(str(tmp_path / "checkpoint-2")).outcome == {
        "kind": "unknown",
        "text": "",
        "step": 2,
        "max_steps": 4,
    }
    (tmp_path / "trainer_state.json").write_text(json.dumps(STATE))
    assert record_of(str(tmp_path)).source == "trainer_state.json"


@pytest.mark.parametrize("state", ["[]", "{}", '{"log_history": 3}'])
def test_a_damaged_state_is_told_in_a_line(tmp_path, state):
    (tmp_path / "trainer_state.json").write_text(state)
    with pytest.raises(MisconfigurationException, match="it has no log_history"):
        record_of(str(tmp_path))


def test_a_folder_without_a_run_and_none_at_all_are_told(tmp_path):
    with pytest.raises(MisconfigurationException, match="There is no training run in"):
        record_of(str(tmp_path))
    with pytest.raises(MisconfigurationException, match="does not exist"):
        record_of(str(tmp_path / "gone"))
    (tmp_path / "file").touch()
    with pytest.raises(MisconfigurationException, match="is a file"):
        record_of(str(tmp_path / "file"))


def test_a_record_that_is_too_large_is_refused_unread(tmp_path):
    (tmp_path / NAME).touch()
    os.truncate(tmp_path / NAME, LARGEST + 1)  # takes no space
    with pytest.raises(MisconfigurationException, match=r"it has .* bytes"):
        record_of(str(tmp_path))
    os.remove(tmp_path / NAME)
    os.mkfifo(tmp_path / NAME)
    with pytest.raises(MisconfigurationException, match="There is no training run in"):
        record_of(str(tmp_path))
