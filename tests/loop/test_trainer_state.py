"""The state of a run: at step 0, and as a checkpoint left it."""

import json
from types import SimpleNamespace

import pytest
from transformers.trainer_callback import CallbackHandler, EarlyStoppingCallback

from mps_trainer.callbacks.events import Events
from mps_trainer.loop.trainer_state import init_state, load_callbacks


@pytest.fixture
def events(make_args):
    args = make_args()
    found = Events(SimpleNamespace(args=args))
    found.handler = CallbackHandler([EarlyStoppingCallback(3)], None, None, None, None)
    return found


@pytest.fixture
def checkpoint(tmp_path):
    """Writes a checkpoint's state, of step 4."""

    def make(**values):
        folder = tmp_path / "run" / "checkpoint-4"
        folder.mkdir(parents=True)
        state = {"global_step": 4, "epoch": 0.5, "log_history": [{"loss": 1.0, "step": 4}], **values}
        (folder / "trainer_state.json").write_text(json.dumps(state))
        return str(folder)

    return make


def trainer(events, args):
    return SimpleNamespace(_mt_events=events, args=args, _load_callback_state=lambda: None)


@pytest.mark.parametrize("where", ["its place", "beside", "nowhere"])
def test_the_best_checkpoint_is_looked_for_in_its_place_then_beside(events, make_args, checkpoint, tmp_path, where):
    best = tmp_path / "before" / "checkpoint-2"
    folder = checkpoint(best_model_checkpoint=str(best), best_metric=0.5, best_global_step=2)
    found = {"its place": best, "beside": tmp_path / "run" / "checkpoint-2", "nowhere": None}[where]
    if found is not None:
        found.mkdir(parents=True)
    init_state(trainer(events, make_args()), folder, 10)
    state = events.state
    assert state.best_model_checkpoint == (None if found is None else str(found))
    assert (state.best_metric, state.best_global_step) == ((None, None) if found is None else (0.5, 2))


def test_a_relative_best_checkpoint_is_that_of_the_run_that_is_resumed(
    events, make_args, checkpoint, tmp_path, monkeypatch
):
    folder = checkpoint(best_model_checkpoint="run/checkpoint-2", best_metric=0.5, best_global_step=2)
    of_another_run = tmp_path / "elsewhere" / "run" / "checkpoint-2"
    of_another_run.mkdir(parents=True)
    (tmp_path / "run" / "checkpoint-2").mkdir()
    for working_folder, resumed, expected in [
        (tmp_path, "run/checkpoint-4/", "run/checkpoint-2"),
        (tmp_path / "elsewhere", folder, str(tmp_path / "run" / "checkpoint-2")),
    ]:
        monkeypatch.chdir(working_folder)
        init_state(trainer(events, make_args()), resumed, 10)
        assert events.state.best_model_checkpoint == expected


def test_the_state_of_a_callback_that_is_not_there_is_told(events, caplog):
    caplog.set_level("WARNING", logger="transformers.trainer")
    events.state.stateful_callbacks = {"Gone": {"args": {}}}
    load_callbacks(events)
    assert "The checkpoint has the state of a callback Gone, which this run does not have." in caplog.messages
