"""Tests the choice of the checkpoint to resume from, and the removal of old ones."""

import json
import os
from unittest import mock

import pytest

from mps_trainer.checkpoints import folders, manifest
from mps_trainer.checkpoints.resume import requested_checkpoint
from tests.conftest import refusal


def cut(path, kept=10):
    path.write_bytes(path.read_bytes()[:kept])


def change(folder, **values) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_the_newest_whole_one_is_taken_and_the_skipped_ones_are_told(make_checkpoint, tmp_path, caplog):
    whole = make_checkpoint(5)
    for step in (10, 20):
        cut(make_checkpoint(step) / "optimizer.pt")
    assert requested_checkpoint("True", str(tmp_path)) == str(whole)
    assert requested_checkpoint(whole, "elsewhere") == str(whole)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert f"Skipping {tmp_path / 'checkpoint-20'}, which is damaged: optimizer.pt has 10 bytes" in told[0]
    assert told[0].endswith(f"Resuming from {whole}.")


def test_one_of_transformers_that_was_half_written_is_skipped(make_checkpoint, tmp_path):
    whole = make_checkpoint(5, listed=False)
    cut(make_checkpoint(10, listed=False) / "model.safetensors")
    (tmp_path / "checkpoint-15").mkdir()  # killed before its first file
    assert requested_checkpoint(True, str(tmp_path)) == str(whole)


@pytest.mark.parametrize("lost", ["", "damaged"])
def test_one_without_its_manifest_does_not_bring_back_an_earlier_run(make_checkpoint, tmp_path, lost):
    for step in (1000, 100, 200):
        make_checkpoint(step)
    path = tmp_path / "checkpoint-200" / "manifest.json"
    path.write_text("{") if lost else path.unlink()
    expected = tmp_path / f"checkpoint-{100 if lost else 200}"
    assert requested_checkpoint(True, str(tmp_path)) == str(expected)


@pytest.mark.parametrize("of_transformers", [5, 10])
@pytest.mark.parametrize("steps", [(5, 10), (10, 5)])
def test_those_of_transformers_and_of_this_package_are_of_one_run(make_checkpoint, tmp_path, steps, of_transformers):
    for step in steps:
        make_checkpoint(step, listed=step != of_transformers)
    assert requested_checkpoint(True, str(tmp_path)) == str(tmp_path / "checkpoint-10")


def test_if_all_are_damaged_each_is_named(make_checkpoint, tmp_path):
    assert "No valid checkpoint found in output" in refusal(requested_checkpoint, True, str(tmp_path))
    cut(make_checkpoint(5) / "optimizer.pt")
    (make_checkpoint(10) / "model.safetensors").unlink()
    said = refusal(requested_checkpoint, True, str(tmp_path))
    assert "checkpoint-10: model.safetensors is missing; checkpoint-5: optimizer.pt has 10 bytes" in said


def test_a_damaged_one_that_was_asked_for_is_an_error_with_the_last_good_one(make_checkpoint, tmp_path):
    older, good = make_checkpoint(5), make_checkpoint(10)
    for step in (15, 20):
        cut(make_checkpoint(step) / "model.safetensors")
    message = refusal(requested_checkpoint, str(tmp_path / "checkpoint-20"), str(tmp_path))
    assert message.startswith(f"The checkpoint {tmp_path}/checkpoint-20 is damaged: model.safetensors has 10 bytes")
    assert f"The last good checkpoint beside it is {good}." in message
    assert message.endswith("delete its manifest.json; it then loads unchecked.")
    for folder in (older, good):
        cut(folder / "model.safetensors")
    message = refusal(requested_checkpoint, str(tmp_path / "checkpoint-20"), str(tmp_path))
    assert "There is no good one beside it." in message


@pytest.mark.parametrize(
    "name",
    [
        "mine",
        "tmp-checkpoint-",
        "tmp-checkpoint-5-mine",
        "tmp-checkpoint-5.replaced.mine",
        "tmp-checkpoint-removed-mine",
        "tmp-checkpoint-\u0665",
    ],
)
def test_what_a_killed_run_had_not_finished_is_removed_and_a_folder_of_the_user_stays(tmp_path, name):
    for each in (name, "checkpoint-5", "tmp-checkpoint-10", "tmp-checkpoint-removed-checkpoint-3"):
        (tmp_path / each).mkdir()
        (tmp_path / each / "notes.txt").write_text("mine")
    folders.clear_left_overs(str(tmp_path))
    assert set(os.listdir(tmp_path)) == {name, "checkpoint-5"}
    assert (tmp_path / name / "notes.txt").read_text() == "mine"
    assert not folders.is_left_over(name)


def test_one_that_was_about_to_be_replaced_is_put_back_and_one_that_was_replaced_is_removed(
    make_checkpoint, tmp_path, caplog
):
    # killed between the two renames of put_in_place
    old = make_checkpoint(5)
    old.rename(tmp_path / "tmp-checkpoint-5.replaced")
    (tmp_path / "tmp-checkpoint-5").mkdir()
    folders.clear_left_overs(str(tmp_path))
    assert os.listdir(tmp_path) == ["checkpoint-5"]
    assert requested_checkpoint(True, str(tmp_path)) == str(old)
    assert "Restored " in caplog.text
    # killed after the second
    (tmp_path / "tmp-checkpoint-5.replaced").mkdir()
    folders.clear_left_overs(str(tmp_path))
    assert os.listdir(tmp_path) == ["checkpoint-5"]
    assert (old / "optimizer.pt").exists()


def test_removing_one_leaves_no_half_of_it(make_checkpoint, tmp_path, monkeypatch, caplog):
    folder = make_checkpoint(5)
    monkeypatch.setattr(folders.shutil, "rmtree", mock.Mock(side_effect=OSError(5, "Input/output error")))
    folders.remove(str(folder))
    assert folders.find_checkpoints(str(tmp_path)) == []
    assert "could not be removed: Input/output error" in caplog.text


def test_the_best_is_kept_however_its_folder_is_spelled(make_checkpoint, tmp_path):
    for step in (1, 3):
        make_checkpoint(step)
    (tmp_path / "checkpoint-2").symlink_to(make_checkpoint(4).rename(tmp_path / "moved"))  # the link goes
    folders.rotate(f"{tmp_path}//", 1, {str(tmp_path / "checkpoint-1"), f"{tmp_path}//checkpoint-3"}, set())
    assert sorted(os.listdir(tmp_path)) == ["checkpoint-1", "checkpoint-3", "moved"]


@pytest.mark.parametrize(("limit", "count"), [(1, 1), (1, 4), (2, 5), (4, 4), (6, 3)])
def test_a_limit_removes_the_oldest_and_only_as_many_as_are_too_many(make_checkpoint, tmp_path, limit, count):
    for step in range(1, count + 1):
        make_checkpoint(step, listed=False)
    folders.rotate(str(tmp_path), limit, {str(tmp_path / f"checkpoint-{count}"), None}, set())
    left = [folders.step_of(folder) for folder in folders.find_checkpoints(str(tmp_path))]
    assert left == list(range(max(count - limit, 0) + 1, count + 1))


def test_saves_are_numbered_in_their_order(make_checkpoint, tmp_path):
    assert folders.next_save(str(tmp_path)) == 1
    for step in (8, 2):
        make_checkpoint(step)
    assert [manifest.entry(str(tmp_path / f"checkpoint-{step}"), "save") for step in (8, 2)] == [1, 2]
    make_checkpoint(5).rename(tmp_path / "new")
    assert folders.commit(str(tmp_path / "new"), str(tmp_path / "checkpoint-5"), 5) == 3
    assert manifest.entry(str(tmp_path / "checkpoint-5"), "save") == 3


def test_a_checkpoint_replaces_one_of_its_step_and_leaves_nothing_of_it(make_checkpoint, tmp_path):
    make_checkpoint(5).rename(tmp_path / "new")
    (make_checkpoint(5) / "of the old one").touch()
    folders.commit(str(tmp_path / "new"), str(tmp_path / "checkpoint-5"), 5)
    assert os.listdir(tmp_path) == ["checkpoint-5"]
    assert "of the old one" not in os.listdir(tmp_path / "checkpoint-5")


@pytest.mark.parametrize(
    ("written", "newest", "told"),
    [
        ({2: 5000.0, 4: 5001.0, 6: 1400.0, 8: 1401.0}, 8, None),
        ({90: 1.0, 10: 2.0}, 10, "checkpoint-10 was saved last, but {}/checkpoint-90 has a later"),
    ],
)
def test_the_newest_is_the_one_that_was_saved_last(make_checkpoint, tmp_path, caplog, written, newest, told):
    for step, when in written.items():
        change(make_checkpoint(step), written=when)
    assert requested_checkpoint(True, str(tmp_path)) == str(tmp_path / f"checkpoint-{newest}")
    assert [record.levelname for record in caplog.records] == ["WARNING"] * (told is not None)
    assert told is None or told.format(tmp_path) in caplog.text


def test_without_numbers_steps_decide(make_checkpoint, tmp_path):
    """As in checkpoints of transformers."""
    for step in (4, 2):
        folder = make_checkpoint(step)
    change(folder, save=None)
    assert requested_checkpoint(True, str(tmp_path)) == str(tmp_path / "checkpoint-4")


@pytest.mark.parametrize(
    "name", ["checkpoint-0004", "checkpoint-٩", "checkpoint-00", "checkpoint-4\n", "checkpoint-²", "checkpoint-+4"]
)
def test_only_the_packages_own_names_are_checkpoints(make_checkpoint, tmp_path, name):
    whole = make_checkpoint(5)
    (tmp_path / name).mkdir()
    assert folders.step_of(str(tmp_path / name)) == -1
    assert folders.find_checkpoints(str(tmp_path)) == [str(whole)]
