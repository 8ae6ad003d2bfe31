"""The state of a run: at step 0, and as a checkpoint left it."""

import json

import pytest

from mps_trainer.loop.initial_state import init_state


@pytest.fixture
def checkpoint(tmp_path):
    def make(**values):
        folder = tmp_path / "run" / "checkpoint-4"
        folder.mkdir(parents=True)
        state = {"global_step": 4, "epoch": 0.5, "log_history": [{"loss": 1.0, "step": 4}], **values}
        (folder / "trainer_state.json").write_text(json.dumps(state))
        return str(folder)

    return make


@pytest.mark.parametrize("where", ["its place", "beside", "nowhere"])
def test_the_best_checkpoint_is_looked_for_in_its_place_then_beside(make_trainer, checkpoint, tmp_path, where):
    best = tmp_path / "before" / "checkpoint-2"
    folder = checkpoint(best_model_checkpoint=str(best), best_metric=0.5, best_global_step=2)
    found = {"its place": best, "beside": tmp_path / "run" / "checkpoint-2", "nowhere": None}[where]
    if found is not None:
        found.mkdir(parents=True)
    trainer = make_trainer()
    init_state(trainer, folder, 10)
    state = trainer.state
    assert state.best_model_checkpoint == (None if found is None else str(found))
    assert (state.best_metric, state.best_global_step) == ((None, None) if found is None else (0.5, 2))


def test_a_relative_best_checkpoint_is_that_of_the_run_that_is_resumed(
    make_trainer, checkpoint, tmp_path, monkeypatch
):
    folder = checkpoint(best_model_checkpoint="run/checkpoint-2", best_metric=0.5, best_global_step=2)
    trainer = make_trainer()
    of_another_run = tmp_path / "elsewhere" / "run" / "checkpoint-2"
    of_another_run.mkdir(parents=True)
    (tmp_path / "run" / "checkpoint-2").mkdir()
    for working_folder, resumed, expected in [
        (tmp_path, "run/checkpoint-4/", "run/checkpoint-2"),
        (tmp_path / "elsewhere", folder, str(tmp_path / "run" / "checkpoint-2")),
    ]:
        monkeypatch.chdir(working_folder)
        init_state(trainer, resumed, 10)
        assert trainer.state.best_model_checkpoint == expected


@pytest.mark.parametrize(
    "recorded",
    [
        r"C:\out\checkpoint-2",
        r".\out\checkpoint-2",
        r"\\server\share\out\checkpoint-2",
        r"\\?\C:\out\checkpoint-2",
        r"C:\runs/out\checkpoint-2",
        r"C:/out/checkpoint-2",
        "C:\\out\\checkpoint-2\\",
        "/Users/me/out/checkpoint-2/",
    ],
)
def test_the_best_checkpoint_is_found_beside_when_the_run_came_from_another_system(
    make_trainer, checkpoint, tmp_path, recorded, caplog
):
    folder = checkpoint(best_model_checkpoint=recorded, best_metric=0.5, best_global_step=2)
    (tmp_path / "run" / "checkpoint-2").mkdir()
    trainer = make_trainer()
    init_state(trainer, folder, 10)
    assert trainer.state.best_model_checkpoint == str(tmp_path / "run" / "checkpoint-2")
    assert (trainer.state.best_metric, trainer.state.best_global_step) == (0.5, 2)
    assert not caplog.messages


def test_the_state_of_a_callback_that_is_not_there_is_told_and_not_kept(make_trainer, checkpoint, caplog):
    caplog.set_level("WARNING", logger="transformers.trainer")
    trainer = make_trainer(restore_callback_states_from_checkpoint=True)
    init_state(trainer, checkpoint(stateful_callbacks={"Gone": {"args": {}}}), 10)
    assert "The checkpoint has the state of a callback Gone, which this run does not have." in caplog.messages
    assert trainer.state.stateful_callbacks.keys() == {"TrainerControl"}
