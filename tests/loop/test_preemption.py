"""A signal during a run: saved where it stands, and gone on with as if nothing had been."""

import os
import random
import signal
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import TrainerCallback, default_data_collator

from mps_trainer import Trainer
from mps_trainer.checkpoints import schema
from mps_trainer.checkpoints.folders import find_checkpoints
from mps_trainer.checkpoints.loading import read_position
from mps_trainer.checkpoints.manifest import STATE
from mps_trainer.loop.preemption import PreemptionHandler
from mps_trainer.loop.run import TrainingRun
from tests.conftest import assert_same_weights, callback, examples, logged, weights, without_times
from tests.guards.test_signals import default_handlers  # noqa: F401

pytestmark = pytest.mark.every_device

SETTINGS = {  # 5 batches of 8 make an epoch
    "max_steps": 12,
    "logging_steps": 3,
    "learning_rate": 1e-2,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "save_strategy": "steps",
    "save_steps": 4,
}


class SignalAt(TrainerCallback):
    """Sends this process a signal at the nth time of an event."""

    def __init__(self, event, number, signum=signal.SIGTERM):
        self.left = number
        setattr(self, event, self._count)
        self.signum = signum

    def _count(self, args, state, control, **kwargs):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.signum)


def drawing(items):
    """Collates and draws from the generators, as for the masks of a masked language model."""
    noise = torch.rand(len(items), 4) + random.random() + np.random.rand()
    points = torch.stack([item["x"] for item in items]) + noise
    return {"x": points, "labels": torch.tensor([item["labels"] for item in items])}


def interrupted(make_trainer, callback, collator=None, **settings):
    trainer = make_trainer({"callbacks": [callback], "data_collator": collator}, **settings)
    with pytest.raises((SystemExit, KeyboardInterrupt)) as ended:
        trainer.train()
    return trainer, ended.value


WHERE = {
    "at the beginning of a step": ("on_step_begin", 3, 3),
    "in a step": ("on_pre_optimizer_step", 7, 7),
    "before an evaluation": ("on_step_end", 6, 6),
    "before an evaluation and a save": ("on_step_end", 8, 8),
    "in an evaluation": ("on_prediction_step", 5, 4),  # 3 batches each
    "in the last batch of one": ("on_prediction_step", 6, 4),
    "at a log": ("on_log", 2, 3),
    "after an evaluation": ("on_evaluate", 2, 4),
    "after a save": ("on_save", 1, 4),
    "at the end of an epoch": ("on_step_end", 10, 10),
    "as an epoch ends": ("on_epoch_end", 1, 5),
    "as an epoch begins": ("on_epoch_begin", 2, 6),
    "in the last step": ("on_step_end", 12, 12),
}


@pytest.mark.parametrize("where", WHERE.values(), ids=WHERE.keys())
@pytest.mark.parametrize(
    ("more", "collator"),
    [({}, None), ({"gradient_accumulation_steps": 2, "eval_strategy": "epoch"}, None), ({}, drawing)],
    ids=["", "epochs", "drawing"],
)
def test_a_run_that_is_resumed_equals_one_that_was_left_alone(make_trainer, trained, tmp_path, where, more, collator):
    event, number, step = where
    settings = {**SETTINGS, **more}
    given = {"callbacks": [SignalAt(event, 0)], "data_collator": collator}  # a listener decides how to clip
    whole = trained(given, output_dir=str(tmp_path / "whole"), **settings)
    stopped, ended = interrupted(make_trainer, SignalAt(event, number), collator, **settings)
    assert ended.code == 143
    assert find_checkpoints(stopped.args.output_dir)[-1].endswith(f"checkpoint-{stopped.state.global_step}")
    if not more:  # the step is finished; one more where it is not known with what the batch ahead was drawn
        assert stopped.state.global_step - step in (0, int(collator is drawing))
    resumed = trained(given, resume=True, **settings)
    assert resumed.state.global_step == 12
    assert_same_weights(weights(whole.model), weights(resumed.model))
    assert without_times(whole.state.log_history) == without_times(resumed.state.log_history)
    names = [os.path.basename(path) for path in find_checkpoints(resumed.args.output_dir)]
    assert set(names) == {"checkpoint-4", "checkpoint-8", "checkpoint-12", f"checkpoint-{stopped.state.global_step}"}
    at_8 = [schema.read(f"{each.args.output_dir}/checkpoint-8/{STATE}", schema.State) for each in (whole, resumed)]
    assert without_times(at_8[0]["log_history"]) == without_times(at_8[1]["log_history"])


@pytest.mark.parametrize("on_start", [False, True])
def test_an_evaluation_is_left_and_not_waited_for(make_trainer, capfd, on_start):
    trainer, ended = interrupted(make_trainer, SignalAt("on_prediction_step", 1), eval_on_start=on_start, **SETTINGS)
    assert ended.code == 143
    assert ended.__context__ is None  # nor does Ctrl-C show two tracebacks
    assert trainer.state.global_step == (0 if on_start else 2)
    assert logged(trainer, "eval_loss") == []
    assert len(find_checkpoints(trainer.args.output_dir)) == (0 if on_start else 1)
    assert ("with nothing new to save" in capfd.readouterr().err) is on_start


def test_a_signal_after_an_evaluation_that_failed_saves_what_is_then(make_trainer, trained):
    class Lenient(Trainer):
        def _maybe_log_save_evaluate(self, *given, **named):
            try:
                super()._maybe_log_save_evaluate(*given, **named)
            except ZeroDivisionError:
                self.control.should_evaluate = False

    def fail(state, **_):
        if state.global_step == 2:
            raise ZeroDivisionError

    trainer = make_trainer({"kind": Lenient, "callbacks": [callback(on_prediction_step=fail)]}, **SETTINGS)
    trainer.add_callback(SignalAt("on_step_end", 3))
    with pytest.raises(SystemExit):
        trainer.train()
    assert read_position(os.path.join(trainer.args.output_dir, "checkpoint-3"))["batches"] == 3


def test_an_interrupt_is_one_with_the_way_on_also_of_a_run_that_saves_nothing_else(make_trainer):
    settings = {**SETTINGS, "save_strategy": "no"}
    trainer, ended = interrupted(make_trainer, SignalAt("on_step_end", 2, signal.SIGINT), **settings)
    folder = os.path.join(trainer.args.output_dir, "checkpoint-2")
    assert find_checkpoints(trainer.args.output_dir) == [folder]
    assert type(ended) is KeyboardInterrupt
    assert str(ended).startswith(f"Stopped after step 2 of 12 and saved {folder}. To resume: ")
    assert folder in str(ended).split("To resume: ")[1]


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("run --restarts 3 train.py", "train.py"),
        ("launch --mixed_precision bf16 -m my.train", "/elsewhere/my/train.py"),
        ("launch -m my.train", "/elsewhere/my/train/__main__.py"),
    ],
)
def test_the_way_on_of_a_command_has_its_settings_and_script(make_trainer, monkeypatch, words, path):
    monkeypatch.setenv("MPS_TRAINER_COMMAND", words)
    monkeypatch.setattr(sys, "argv", [path, "--output_dir", "out"])
    monkeypatch.setattr("mps_trainer.loop.preemption.script_takes_flags", lambda: True)
    _, ended = interrupted(make_trainer, SignalAt("on_step_end", 2, signal.SIGINT), **SETTINGS)
    assert f"-m mps_trainer {words} --output_dir out --resume_from_checkpoint " in str(ended)
    monkeypatch.setattr("mps_trainer.loop.preemption.script_takes_flags", lambda: False)
    _, ended = interrupted(make_trainer, SignalAt("on_step_end", 2, signal.SIGINT), **SETTINGS)
    assert "--output_dir out" not in str(ended)


def test_without_save_on_signal_an_interrupt_is_pythons_own(make_trainer):
    settings = {**SETTINGS, "save_on_signal": False}
    trainer, ended = interrupted(make_trainer, SignalAt("on_step_end", 2, signal.SIGINT), **settings)
    assert str(ended) == ""
    assert find_checkpoints(trainer.args.output_dir) == []


def test_a_second_one_stops_at_once_and_leaves_the_last_whole_checkpoint(make_trainer, trained):
    def twice(state, **_):
        if state.global_step == 6:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    _, ended = interrupted(make_trainer, callback(on_step_end=twice), **SETTINGS)
    assert str(ended) == ""
    resumed = trained(resume=True, **SETTINGS)
    assert find_checkpoints(resumed.args.output_dir)[0].endswith("checkpoint-4")
    assert resumed.state.global_step == 12


@pytest.mark.parametrize(("signum", "kind"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)])
@pytest.mark.parametrize(("strategy", "says"), [("steps", "the last step, 12, and"), ("no", "step 12 of 12 and")])
def test_a_signal_after_the_last_step_ends_the_run_when_it_is_done(make_trainer, signum, kind, strategy, says):
    settings = {**SETTINGS, "save_strategy": strategy}
    trainer, ended = interrupted(make_trainer, SignalAt("on_train_end", 1, signum), **settings)
    assert type(ended) is kind
    assert kind is SystemExit or f"Stopped after {says}" in str(ended)
    assert "train_loss" in trainer.state.log_history[-1]
    assert find_checkpoints(trainer.args.output_dir)[-1].endswith("checkpoint-12")


@pytest.mark.parametrize("step", [1, 7])
def test_a_checkpoint_that_a_callback_asks_for_draws_the_same_again(assert_resumes, step):
    def ask(state, control, **_):
        control.should_save = state.global_step == step

    parts = {"callbacks": [callback(on_step_end=ask)], "data_collator": drawing}
    assert_resumes(step, lambda: parts, **{**SETTINGS, "save_strategy": "no"})


@pytest.mark.parametrize("step", [3, 5])  # within an epoch, and at its end
def test_a_resumed_run_draws_the_same_again_if_callbacks_draw(assert_resumes, step):
    def draw(**_):
        return drawing(examples(1))

    parts = {"callbacks": [callback(on_train_begin=draw, on_epoch_begin=draw)], "data_collator": drawing}
    assert_resumes(step, lambda: parts, **{**SETTINGS, "save_steps": 1})


def test_a_checkpoint_draws_the_same_again_where_the_first_batch_draws_nothing(assert_resumes):
    rows = examples(40)

    def collate(items):
        return default_data_collator(items) if torch.equal(items[0]["x"], rows[0]["x"]) else drawing(items)

    settings = {**SETTINGS, "train_sampling_strategy": "sequential"}
    assert_resumes(4, lambda: {"data_collator": collate, "train_dataset": rows}, **settings)


@pytest.mark.parametrize(("done", "has_ended"), [(3, False), (0, True)])
def test_an_epoch_without_its_first_batch_has_not_begun(make_trainer, done, has_ended):
    run = TrainingRun(make_trainer())
    run.preemption.save_and_end = lambda log: None
    run.position.batches, run.position.epoch_has_ended = done, False
    run.save_without_batch()
    assert run.position.epoch_has_ended is has_ended


@pytest.mark.parametrize("where", [("on_prediction_step", 5), ("on_evaluate", 2), ("on_step_end", 5)])
def test_a_resumed_run_ends_where_what_was_postponed_asks_for_it(make_trainer, trained, tmp_path, where):
    is_evaluation = where[0] != "on_step_end"  # else the end of an epoch
    last = 4 if is_evaluation else 5

    def end(state, control, **_):
        control.should_training_stop |= state.global_step == last

    ending = callback(**{"on_evaluate" if is_evaluation else "on_epoch_end": end})
    whole = trained({"callbacks": [ending]}, output_dir=str(tmp_path / "whole"), **SETTINGS)
    with pytest.raises(SystemExit):
        make_trainer({"callbacks": [SignalAt(*where), ending]}, **SETTINGS).train()
    resumed = trained({"callbacks": [ending]}, resume=True, **SETTINGS)
    assert resumed.state.global_step == whole.state.global_step == last
    assert without_times(whole.state.log_history) == without_times(resumed.state.log_history)


@pytest.mark.parametrize(("loads_best", "newest"), [(True, "checkpoint-8"), (False, "checkpoint-11")])
def test_a_signal_after_the_best_weights_were_loaded_saves_none(make_trainer, loads_best, newest):
    """They are those of an earlier step, whose checkpoint is there."""

    class SavesNoLastStep(SignalAt):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_save &= state.global_step < state.max_steps

    settings = {**SETTINGS, "eval_steps": 4, "max_steps": 11, "load_best_model_at_end": loads_best}
    best = {"metric_for_best_model": "loss"}
    trainer, _ = interrupted(make_trainer, SavesNoLastStep("on_train_end", 1), **settings, **best)
    assert trainer.state.best_model_checkpoint is not None
    assert [os.path.basename(each) for each in find_checkpoints(trainer.args.output_dir)][-1] == newest


TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
SLURM, SRUN = {"SLURM_STEP_NUM_TASKS": "2"}, ["srun", "--nodes", "2", "--ntasks", "2", sys.executable]
RUN, LAUNCH = {"MPS_TRAINER_COMMAND": "run train.py"}, {"MPS_TRAINER_COMMAND": "launch --cpu train.py"}
MACS = {"RANK": "1", "MPS_TRAINER_COMMAND": "launch --hosts mac1.local,mac2.local train.py"}


@pytest.mark.parametrize(
    ("environ", "size", "machines", "expected"),
    [
        ({}, 1, 1, [sys.executable]),
        ({}, 4, 1, [*TORCHRUN, "--nproc_per_node", "4"]),
        ({}, 4, 2, [*TORCHRUN, "--nnodes", "2", "--node_rank", "...", "--nproc_per_node", "2"]),
        ({"MLX_RANK": "1"}, 2, 1, ["mlx.launch", "-n", "2", "--", sys.executable]),
        ({"MLX_RANK": "1"}, 2, 2, ["mlx.launch", "--hostfile", "...", "--", sys.executable]),
        (SLURM, 2, 2, SRUN),
        (MACS, 2, 2, [sys.executable, "-m", "mps_trainer", "launch", "--hosts", "mac1.local,mac2.local"]),
        # these are variables of torchrun -m mps_trainer run train.py, and of srun
        ({"RANK": "1", **RUN}, 2, 1, [*TORCHRUN, "--nproc_per_node", "2", "-m", "mps_trainer", "run"]),
        ({**SLURM, **RUN}, 2, 2, [*SRUN, "-m", "mps_trainer", "run"]),
        ({**SLURM, **LAUNCH}, 2, 2, [*SRUN, "-m", "mps_trainer", "launch", "--cpu"]),
        ({"MPS_TRAINER_COMMAND": "run sweep.py"}, 1, 1, [sys.executable]),  # it has started train.py
    ],
)
def test_the_way_on_names_the_launcher_processes_and_machines(monkeypatch, environ, size, machines, expected):
    monkeypatch.setattr(sys, "argv", ["train.py"])
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    trainer = SimpleNamespace(_mt_processes=SimpleNamespace(size=size))
    assert PreemptionHandler(trainer, None, None, None)._launcher(machines) == expected
