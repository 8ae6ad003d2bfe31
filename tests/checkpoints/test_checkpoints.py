"""The checkpoints of a run that does not train: which files are written, which checkpoints are removed."""

import os
import signal

import pytest
from transformers.trainer_callback import TrainerState

from mps_trainer.checkpoints.checkpoints import wait_for_background
from mps_trainer.loop.run import TrainingRun

from .conftest import names


@pytest.fixture
def trainer(make_trainer):
    return TrainingRun(make_trainer()).trainer


@pytest.fixture
def saver(trainer):
    return trainer._mt_checkpoints


@pytest.mark.parametrize("best", [3, 4])
def test_a_failed_save_does_not_replace_a_best_that_is_there(saver, trainer, tmp_path, caplog, best):
    folder = tmp_path / "run" / "checkpoint-3"
    (tmp_path / "run" / f"checkpoint-{best}").mkdir(parents=True)  # 3 of an earlier save
    trainer.state.best_model_checkpoint = kept = str(tmp_path / "run" / f"checkpoint-{best}")
    saver._note_result(str(folder), "before", "the disk is full")
    assert trainer.state.best_model_checkpoint == kept
    assert f"{folder} could not be saved: the disk is full. The last one is {kept}." in caplog.text


def test_a_background_save_after_a_failed_one_calls_on_save(saver, trainer, tmp_path, monkeypatch):
    noted = []
    monkeypatch.setattr(trainer._mt_events, "note", lambda *event: noted.append(event))
    saver._note_result(str(tmp_path / "run" / "checkpoint-2"), None, "the disk is full")
    told = saver.unsaved
    trainer.state.global_step = 3
    saver.write()
    saver.fire_on_save()
    saver.wait()
    assert noted == [("fault", told), ("checkpoint",)]


def test_a_run_that_resumes_by_a_link_continues_the_checkpoints_beside_the_real_one(saver, trainer, tmp_path):
    for step in (2, 4, 6):
        (tmp_path / "run" / f"checkpoint-{step}").mkdir(parents=True)
    (tmp_path / "latest").symlink_to(tmp_path / "run" / "checkpoint-4")
    trainer.state.global_step = 4
    saver.find_stale(str(tmp_path / "latest"))
    assert saver.stale == {str(tmp_path / "run" / "checkpoint-6")}


def test_a_thread_that_outlives_its_run_rotates_by_the_settings_of_that_run(saver, trainer, make_args, tmp_path, gate):
    for step in (2, 4, 6):
        (tmp_path / "run" / f"checkpoint-{step}").mkdir(parents=True)
    trainer.state.global_step = 4
    saver.find_stale(str(tmp_path / "run" / "checkpoint-4"))
    gate.clear()
    trainer.args.save_total_limit, trainer.state.global_step = 2, 5
    trainer.state.best_model_checkpoint = str(tmp_path / "run" / "checkpoint-2")
    saver.write()
    # the run is interrupted, and the Trainer gets other arguments and another state
    trainer._mt_run, trainer.args = None, make_args(save_total_limit=1, overwrite_output_dir=True)
    trainer.state = TrainerState(global_step=0)
    gate.set()
    saver.wait()
    assert names(trainer) == ["checkpoint-2", "checkpoint-5"]


@pytest.fixture
def unfinished(saver, gate):
    """Returns the checkpoints of a run, of which one is being written in the background."""
    gate.clear()
    saver.write()
    yield saver
    gate.set()
    wait_for_background()


def test_a_signal_while_a_checkpoint_is_waited_for_does_not_forget_it(unfinished, trainer, gate):
    def ends(signum, frame):
        gate.set()
        raise SystemExit(143)

    before = signal.signal(signal.SIGALRM, ends)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(SystemExit):
            unfinished.wait()
    finally:
        signal.signal(signal.SIGALRM, before)
    unfinished.wait()
    assert names(trainer) == ["checkpoint-0"]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_the_thread_that_it_does_not_have(unfinished):
    if (child := os.fork()) == 0:
        signal.alarm(10)
        unfinished.wait()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
