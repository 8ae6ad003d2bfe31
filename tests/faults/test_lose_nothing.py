"""Situations in which a run could lose its own work, or another run's."""

import os
import threading

import pytest
import torch

from mps_trainer.checkpoints import folders
from tests.checkpoints.test_resuming import BEST, scores
from tests.conftest import assert_same_weights, callback, examples, logged, refusal, weights
from tests.loop.test_preemption import SignalAt

EVERY_STEP = {"save_strategy": "steps", "save_steps": 1}
WORKERS = {
    "dataloader_num_workers": 1, "dataloader_persistent_workers": True, "per_device_train_batch_size": 4,
    "eval_strategy": "steps",
}  # fmt: skip


def steps_in(folder) -> list[int]:
    return [folders.step_of(path) for path in folders.find_checkpoints(str(folder))]


def test_resuming_into_another_folder_keeps_earlier_checkpoints(trained, tmp_path):
    best = {**BEST, "load_best_model_at_end": True, "save_steps": 1}
    trained({"compute_metrics": scores(9, 8, 7, 6)}, max_steps=4, output_dir=str(tmp_path / "a"), **best)
    settings = {"max_steps": 6, "save_total_limit": 1, "output_dir": str(tmp_path / "b"), **best}
    no_better = {"compute_metrics": scores(1, 0)}
    second = trained(no_better, tmp_path / "a" / "checkpoint-4", **settings)
    assert second.state.best_model_checkpoint == str(tmp_path / "a" / "checkpoint-1")
    assert steps_in(tmp_path / "a") == [1, 2, 3, 4]
    assert steps_in(tmp_path / "b") == [6]


def test_signal_after_last_step_replaces_checkpoint_of_another_run(make_trainer, trained):
    trained(max_steps=2, learning_rate=0.5, **EVERY_STEP)
    trainer = make_trainer({"callbacks": [SignalAt("on_train_end", 1)]}, max_steps=2, save_strategy="no")
    with pytest.raises(SystemExit):
        trainer.train()
    again = trained(resume=os.path.join(trainer.args.output_dir, "checkpoint-2"), max_steps=2)
    assert_same_weights(weights(again.model), weights(trainer.model))


def test_signal_in_first_evaluation_with_persistent_workers_resumes_exactly(trained):
    """The resumed run makes the evaluation for the first time, and draws the seed of its workers."""
    settings = {**WORKERS, "eval_steps": 3, "max_steps": 9, "per_device_eval_batch_size": 4}
    whole = trained(**settings)
    with pytest.raises(SystemExit):
        trained({"callbacks": [SignalAt("on_prediction_step", 1)]}, **settings)
    again = trained(resume=True, **settings)
    assert logged(again, "loss") == logged(whole, "loss")
    assert_same_weights(weights(again.model), weights(whole.model))


def test_resumed_run_does_not_evaluate_on_start_again(assert_resumes):
    settings = {"eval_on_start": True, "eval_strategy": "steps", "eval_steps": 2, "max_steps": 4, **EVERY_STEP}
    again = assert_resumes(3, **settings)
    assert [entry["step"] for entry in again.state.log_history if "eval_loss" in entry] == [0, 2, 4]


@pytest.mark.parametrize("where", ["this thread", "another thread", "this thread, through a link"])
def test_second_run_in_a_folder_is_refused_and_leaves_the_lock(trained, tmp_path, where):
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    name = "link" if "link" in where else "run"
    errors, locks = [], []

    def train():
        errors.append(refusal(trained, max_steps=1, output_dir=str(tmp_path / name)))

    def begin_second(**_):
        if where == "another thread":
            thread = threading.Thread(target=train)
            thread.start()
            thread.join()
        else:
            train()
        locks.append((tmp_path / "run" / folders.LOCK).exists())

    trained({"callbacks": [callback(on_step_end=begin_second)]}, max_steps=2)
    assert [("Another run" in error, error[-16:]) for error in errors] == [(True, " another folder.")] * 2
    assert locks == [True, True]


class OfEpochs(torch.utils.data.Dataset):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 24

    def __getitem__(self, index):
        row = examples(24, seed=1)[index]
        return {**row, "x": row["x"] + self.epoch + torch.rand(())}


@pytest.mark.parametrize("stopped_at", [2, 5, 7, 12])
@pytest.mark.parametrize("case", ["seeded order", "order drawn globally", "another dataset", "dataset of epochs"])
def test_run_with_persistent_workers_resumes_exactly(make_trainer, case, stopped_at):
    """Seeds of workers are drawn in the first pass over a loader, and a resumed run makes a first pass of its own."""

    def make(**more):
        given = {"eval_dataset": OfEpochs()} if case == "dataset of epochs" else {}
        if case == "order drawn globally":
            more["accelerator_config"] = {"use_seedable_sampler": False}
        trainer = make_trainer(given, **WORKERS, eval_steps=4, max_steps=14, **more)

        def evaluate(state, **_):
            if case == "another dataset" and state.global_step % 2:
                trainer.evaluate(examples(8, seed=2), metric_key_prefix="other")

        trainer.add_callback(callback(on_step_end=evaluate))
        return trainer

    whole = make(save_strategy="steps", save_steps=stopped_at)
    whole.train()
    again = make()
    again.train(resume_from_checkpoint=os.path.join(whole.args.output_dir, f"checkpoint-{stopped_at}"))
    for name in ("loss", "eval_loss", "other_loss"):
        assert logged(again, name) == logged(whole, name)
    assert_same_weights(weights(again.model), weights(whole.model))
