"""The checkpoints of a run that does not train: which files are written, which checkpoints are removed."""

import gc
import json
import os
import signal
import types

import pytest
import torch
from torch import nn
from transformers.trainer_callback import TrainerState

from mps_trainer.callbacks.events import Events
from mps_trainer.checkpoints.checkpoints import Checkpoints, SaveResult, wait_for_background
from mps_trainer.checkpoints.loading import LOOP_STATE, OPTIMIZER, POSITION, SCHEDULER, load_state_dicts
from mps_trainer.checkpoints.rng import RNG, rng_state
from mps_trainer.checkpoints.saver import CheckpointSaver
from mps_trainer.checkpoints.writers import Save
from mps_trainer.distributed import Processes
from mps_trainer.loop.run import TrainingRun

from .conftest import names


@pytest.fixture
def trainer(make_trainer):
    return TrainingRun(make_trainer()).trainer


@pytest.fixture
def saver(trainer):
    return CheckpointSaver(trainer)


class Position:
    def state_dict(self):
        return {"loop": {"batches": 3}, "rng": rng_state()}


@pytest.mark.parametrize("in_background", [False, True])
def test_checkpoints_are_handed_what_they_save(make_args, tmp_path, in_background):
    """They know no Trainer, and take another optimizer at the next save."""
    model, checkpoints = nn.Linear(3, 2), Checkpoints(str(tmp_path / "run"))

    def save(step, optimizer):
        stateful = {
            OPTIMIZER: optimizer, SCHEDULER: torch.optim.lr_scheduler.StepLR(optimizer, 7),
            POSITION: Position(),
        }  # fmt: skip
        state = TrainerState(global_step=step)
        result = checkpoints.write(
            Save(state, model, stateful, make_args(), None, Processes(), in_background=in_background)
        )
        assert (result is None) == in_background
        return checkpoints.wait() if in_background else result

    first = save(1, torch.optim.SGD(model.parameters(), lr=0.5))
    second = save(2, torch.optim.SGD(model.parameters(), lr=0.25))
    assert (first.folder, second.error) == (str(tmp_path / "run" / "checkpoint-1"), None)
    for result, rate in ((first, 0.5), (second, 0.25)):
        other = torch.optim.SGD(model.parameters(), lr=0.1)
        load_state_dicts({OPTIMIZER: other}, result.folder)
        assert other.param_groups[0]["lr"] == rate
        with open(os.path.join(result.folder, LOOP_STATE)) as file:
            assert json.load(file) == {"processes": [{"batches": 3}]}
        assert os.path.isfile(os.path.join(result.folder, RNG))


@pytest.mark.parametrize("save_async", [False, True])
def test_between_saves_checkpoints_refer_to_neither_trainer_nor_model(trained, save_async):
    trainer = trained(max_steps=2, save_strategy="steps", save_steps=1, save_async=save_async)
    seen, queue = {}, [trainer._mt_checkpoints]
    while queue:
        each = queue.pop()
        if id(each) not in seen and not isinstance(each, (type, types.ModuleType, types.FunctionType)):
            seen[id(each)] = each
            queue.extend(gc.get_referents(each))
    assert not [each for each in seen.values() if each is trainer or isinstance(each, (nn.Module, torch.Tensor))]


@pytest.mark.parametrize("best", [3, 4])
def test_a_failed_save_does_not_replace_a_best_that_is_there(saver, trainer, tmp_path, caplog, best):
    folder = tmp_path / "run" / "checkpoint-3"
    (tmp_path / "run" / f"checkpoint-{best}").mkdir(parents=True)  # 3 of an earlier save
    trainer.state.best_model_checkpoint = kept = str(tmp_path / "run" / f"checkpoint-{best}")
    saver._note_result(SaveResult(str(folder), "before", "the disk is full"))
    assert trainer.state.best_model_checkpoint == kept
    assert f"{folder} could not be saved: the disk is full. The last one is {kept}." in caplog.text


def test_a_background_save_after_a_failed_one_calls_on_save(saver, trainer, tmp_path, monkeypatch):
    noted = []
    monkeypatch.setattr(Events, "note", lambda self, *event: noted.append(event))
    saver._note_result(SaveResult(str(tmp_path / "run" / "checkpoint-2"), error="the disk is full"))
    told = trainer._mt_checkpoints.unsaved
    trainer.state.global_step = 3
    saver.write()
    saver.fire_on_save()
    saver.wait()
    assert noted == [("fault", told), ("checkpoint",)]


def test_a_run_that_resumes_by_a_link_continues_the_checkpoints_beside_the_real_one(saver, trainer, tmp_path):
    for step in (2, 4, 6):
        (tmp_path / "run" / f"checkpoint-{step}").mkdir(parents=True)
    (tmp_path / "latest").symlink_to(tmp_path / "run" / "checkpoint-4")
    trainer._mt_checkpoints.find_stale(str(tmp_path / "latest"), 4)
    assert trainer._mt_checkpoints.stale == {str(tmp_path / "run" / "checkpoint-6")}


def test_a_thread_that_outlives_its_run_rotates_by_the_settings_of_that_run(saver, trainer, make_args, tmp_path, gate):
    for step in (2, 4, 6):
        (tmp_path / "run" / f"checkpoint-{step}").mkdir(parents=True)
    trainer._mt_checkpoints.find_stale(str(tmp_path / "run" / "checkpoint-4"), 4)
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
