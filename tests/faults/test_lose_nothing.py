"""Ways in which a run lost its own work, or another's."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch
from transformers import TrainerCallback

from mps_trainer import MisconfigurationException
from mps_trainer.checkpoints import folders
from tests.conftest import assert_same_weights, examples, logged, weights

EVERY_STEP = {"save_strategy": "steps", "save_steps": 1}


def steps_in(folder) -> list[int]:
    return [folders.step_of(path) for path in folders.find_checkpoints(str(folder))]


class Falling:
    """A metric that is best at the first evaluation."""

    value = 10.0

    def __call__(self, prediction) -> dict[str, float]:
        self.value -= 1
        return {"score": self.value}


BEST = {
    "eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "score", "load_best_model_at_end": True
}  # fmt: skip


def test_a_run_that_goes_on_elsewhere_leaves_the_checkpoints_that_it_came_from(make_trainer, tmp_path):
    first = make_trainer(
        {"compute_metrics": Falling()}, max_steps=4, output_dir=str(tmp_path / "a"), **EVERY_STEP, **BEST
    )
    first.train()
    assert steps_in(tmp_path / "a") == [1, 2, 3, 4]
    settings = {"max_steps": 6, "save_total_limit": 1, "output_dir": str(tmp_path / "b")}
    second = make_trainer({"compute_metrics": Falling()}, **settings, **EVERY_STEP, **BEST)
    second.compute_metrics.value = 0.0  # no better one comes
    second.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-4"))
    assert second.state.best_model_checkpoint == str(tmp_path / "a" / "checkpoint-1")
    assert steps_in(tmp_path / "a") == [1, 2, 3, 4]
    assert steps_in(tmp_path / "b") == [6]


def test_a_run_of_one_checkpoint_keeps_the_best_in_its_own_folder(make_trainer):
    trainer = make_trainer({"compute_metrics": Falling()}, max_steps=3, save_total_limit=1, **EVERY_STEP, **BEST)
    trainer.train()
    assert steps_in(trainer.args.output_dir) == [1]


def test_a_clock_that_is_set_back_loses_no_steps(make_trainer, monkeypatch, caplog):
    """Set back by an hour at step 3; the run is killed at step 5."""
    real, offset = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + offset[0])

    class SetBack(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3:
                offset[0] = -3600.0
            if state.global_step == 6:
                raise RuntimeError("killed")

    settings = {"max_steps": 8, "save_total_limit": 5, **EVERY_STEP}
    with pytest.raises(RuntimeError, match="killed"):
        make_trainer({"callbacks": [SetBack()]}, **settings).train()
    again = make_trainer(**settings)
    found = steps_in(again.args.output_dir)
    again.train(resume_from_checkpoint=True)
    assert found == [1, 2, 3, 4, 5]
    assert steps_in(again.args.output_dir) == [4, 5, 6, 7, 8]
    assert len(logged(again, "loss")) == 8
    assert "the clock was set back" in caplog.text
    whole = make_trainer(max_steps=8, output_dir=f"{again.args.output_dir}-whole")
    whole.train()
    assert_same_weights(weights(again.model), weights(whole.model))


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_after_the_last_step_saves_what_it_promises(make_trainer, capfd, signum):
    class Signal(TrainerCallback):
        def on_train_end(self, args, state, control, **kwargs):
            os.kill(os.getpid(), signum)

    trainer = make_trainer({"callbacks": [Signal()]}, max_steps=2, save_strategy="no")
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        trainer.train()
    assert "saving a checkpoint" in capfd.readouterr().err
    assert steps_in(trainer.args.output_dir) == [2]
    again = make_trainer(max_steps=2)
    again.train(resume_from_checkpoint=True)
    assert_same_weights(weights(again.model), weights(trainer.model))


def test_a_signal_after_the_last_step_does_not_take_another_runs_checkpoint_for_its_own(make_trainer):
    class Signal(TrainerCallback):
        def on_train_end(self, args, state, control, **kwargs):
            os.kill(os.getpid(), signal.SIGTERM)

    make_trainer(max_steps=2, learning_rate=0.5, **EVERY_STEP).train()
    trainer = make_trainer({"callbacks": [Signal()]}, max_steps=2, save_strategy="no")
    with pytest.raises(SystemExit):
        trainer.train()
    again = make_trainer(max_steps=2)
    again.train(resume_from_checkpoint=os.path.join(trainer.args.output_dir, "checkpoint-2"))
    assert_same_weights(weights(again.model), weights(trainer.model))


def test_a_signal_in_the_first_evaluation_with_workers_that_persist(make_trainer):
    """The resumed run makes the evaluation for the first time, and draws the seed of its workers."""
    settings = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True, "per_device_train_batch_size": 4}
    settings |= {"eval_strategy": "steps", "eval_steps": 3, "max_steps": 9, "per_device_eval_batch_size": 4}

    class Signal(TrainerCallback):
        def on_prediction_step(self, args, state, control, **kwargs):
            if state.global_step == 3:
                os.kill(os.getpid(), signal.SIGTERM)

    whole = make_trainer(**settings)
    whole.train()
    stopped = make_trainer({"callbacks": [Signal()]}, **settings)
    with pytest.raises(SystemExit):
        stopped.train()
    again = make_trainer(**settings)
    again.train(resume_from_checkpoint=True)
    assert logged(again, "loss") == logged(whole, "loss")
    assert_same_weights(weights(again.model), weights(whole.model))


def test_a_resumed_run_does_not_evaluate_again_before_its_first_step(make_trainer):
    settings = {"eval_on_start": True, "eval_strategy": "steps", "eval_steps": 2, "max_steps": 4, **EVERY_STEP}
    trainer = make_trainer(**settings)
    trainer.train()
    again = make_trainer(**settings)
    again.train(resume_from_checkpoint=os.path.join(trainer.args.output_dir, "checkpoint-3"))
    assert [entry["step"] for entry in again.state.log_history if "eval_loss" in entry] == [0, 2, 4]
    assert logged(again, "eval_loss") == logged(trainer, "eval_loss")


def test_two_threads_do_not_train_into_one_folder(make_trainer):
    refused: list[BaseException] = []

    class Second(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            def train():
                try:
                    make_trainer(max_steps=1, output_dir=args.output_dir).train()
                except BaseException as error:
                    refused.append(error)

            if not refused:
                thread = threading.Thread(target=train)
                thread.start()
                thread.join()

    make_trainer({"callbacks": [Second()]}, max_steps=2).train()
    assert [type(error) for error in refused] == [MisconfigurationException]
    assert "in this process" in str(refused[0])


def test_a_run_within_a_run_is_refused_and_leaves_the_lock(make_trainer):
    seen = []

    class Nested(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            with pytest.raises(MisconfigurationException, match="Another run"):
                make_trainer(max_steps=1, output_dir=args.output_dir).train()
            seen.append(os.path.exists(os.path.join(args.output_dir, folders.LOCK)))

    make_trainer({"callbacks": [Nested()]}, max_steps=2).train()
    assert seen == [True, True]


def test_a_folder_is_one_however_it_is_spelled(make_trainer, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")

    class Nested(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            with pytest.raises(MisconfigurationException, match="Another run"):
                make_trainer(max_steps=1, output_dir=str(tmp_path / "link")).train()

    make_trainer({"callbacks": [Nested()]}, max_steps=1, output_dir=str(tmp_path / "run")).train()


def test_a_callback_that_changes_the_working_folder_loses_no_checkpoint_and_no_report(
    make_trainer, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()

    class Moves(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            os.chdir(tmp_path / "elsewhere")

    settings = {"max_steps": 2, "output_dir": "run", "report": True, **EVERY_STEP}
    make_trainer({"callbacks": [Moves()]}, **settings).train()
    assert steps_in(tmp_path / "run") == [1, 2]
    assert list(tmp_path.rglob("report.html")) == [tmp_path / "run" / "report.html"]
    assert list((tmp_path / "elsewhere").rglob("checkpoint-*")) == []
    monkeypatch.chdir(tmp_path)
    make_trainer(**{**settings, "max_steps": 3}).train(resume_from_checkpoint="run/checkpoint-2")
    assert steps_in("run") == [1, 2, 3]


class OfEpochs(torch.utils.data.Dataset):
    """Examples that change with the epoch, and at random."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 24

    def __getitem__(self, index):
        row = examples(24, seed=1)[index]
        return {**row, "x": row["x"] + self.epoch + torch.rand(())}


class Other(TrainerCallback):
    """Evaluates on another dataset of no name, at every other step."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % 2:
            self.trainer.evaluate(examples(8, seed=2), metric_key_prefix="other")


@pytest.mark.parametrize("stopped_at", [2, 5, 7, 12])
@pytest.mark.parametrize("case", ["seeded order", "order drawn globally", "another dataset", "dataset of epochs"])
def test_a_run_with_workers_that_persist_goes_on_as_it_would_have(make_trainer, case, stopped_at):
    """Their seeds are drawn in the first pass over a loader alone, and a resumed run makes its own first pass."""
    settings = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True, "per_device_train_batch_size": 4}
    settings |= {"eval_strategy": "steps", "eval_steps": 4, "max_steps": 14}

    def make(**more):
        given = {"eval_dataset": OfEpochs()} if case == "dataset of epochs" else {}
        if case == "order drawn globally":
            more["accelerator_config"] = {"use_seedable_sampler": False}
        trainer = make_trainer(given, **settings, **more)
        if case == "another dataset":
            other = Other()
            other.trainer = trainer
            trainer.add_callback(other)
        return trainer

    whole = make(save_strategy="steps", save_steps=stopped_at)
    whole.train()
    again = make()
    again.train(resume_from_checkpoint=os.path.join(whole.args.output_dir, f"checkpoint-{stopped_at}"))
    for name in ("loss", "eval_loss", "other_loss"):
        assert logged(again, name) == logged(whole, name)
    assert_same_weights(weights(again.model), weights(whole.model))
