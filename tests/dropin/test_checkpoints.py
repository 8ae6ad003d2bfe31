"""Checkpoints both ways: what transformers wrote goes on here, and what is written here goes on there."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from transformers import EarlyStoppingCallback, TrainerCallback, TrainerState
from transformers.trainer_callback import ExportableState

import mps_trainer
from mps_trainer.callbacks import ProgressCallback
from mps_trainer.errors import MisconfigurationException

from .conftest import Library, assert_same_logs, bert_classifier, gpt2, sentences, texts

STEPS = {"save_strategy": "steps", "save_steps": 2, "max_steps": 7}
SETTINGS = {
    "in an epoch": {},
    "at its end": {"save_steps": 3},
    "plain optimizer": {"optim": "adamw_torch"},
    "sgd": {"optim": "sgd", "learning_rate": 0.1},
    "adafactor": {"optim": "adafactor"},
    "bfloat16": {"bf16": True},
    "plateau": {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 1},
    "activation checkpointing": {"activation_checkpointing": True},
    "data not skipped": {"ignore_data_skip": True},
}


def trained(library, resume_from=None, callbacks=None, **settings):
    data = {"train_dataset": sentences(), "eval_dataset": sentences(8, seed=1), "callbacks": callbacks}
    trainer = library.trainer(bert_classifier(), trainer=data, **{**STEPS, **settings})
    trainer.train(resume_from_checkpoint=None if resume_from is None else str(resume_from))
    weights = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    return trainer, weights


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_a_run_begun_in_one_goes_on_in_the_other(both, tmp_path, settings):
    step = settings.get("save_steps", 2)

    def whole(library):
        trainer, weights = trained(library, **settings)
        shutil.copytree(library.folder / f"checkpoint-{step}", tmp_path / f"from-{library.module.__name__}")
        return trainer.state.log_history, weights

    def changed_over(library):
        source = tmp_path / ("from-transformers" if library.is_ours else "from-mps_trainer")
        trainer, weights = trained(library, source, **settings)
        return trainer.state.log_history, weights

    (logs, weights), _ = both(whole)
    for went_on, its_weights in both(changed_over):
        if not settings.get("ignore_data_skip"):  # other data, other losses: the two are compared below
            assert_same_logs(went_on[:-1], logs[:-1], resumed=True)
            assert all(torch.allclose(its_weights[name], weights[name], atol=1e-6) for name in weights)
        assert [entry["step"] for entry in went_on] == [entry["step"] for entry in logs]


def test_a_resumed_run_reports_what_it_reports_in_transformers(both):
    def run(library):
        trained(library, **{**STEPS, "max_steps": 4})
        trainer, _ = trained(library, library.folder / "checkpoint-2", include_num_input_tokens_seen="all")
        return trainer.state.log_history

    theirs, ours = both(run)
    for last in (ours[-1], theirs[-1]):
        last.pop("train_loss")  # of the whole run here, as if it had not been interrupted; of its last part there
    assert_same_logs(ours[2:], theirs[2:])


def test_the_files_and_the_state_are_the_same(both):
    def run(library):
        trained(library, eval_strategy="steps", eval_steps=2, load_best_model_at_end=True)
        folder = library.folder / "checkpoint-4"
        state = json.loads((folder / "trainer_state.json").read_text())
        return {path.name for path in folder.iterdir()}, state, folder

    theirs, ours = both(run)
    assert ours[0] == theirs[0] | {"loop_state.json", "manifest.json"}
    assert ours[1].keys() == theirs[1].keys()
    assert ours[1]["stateful_callbacks"].keys() == theirs[1]["stateful_callbacks"].keys()
    for name in ("epoch", "global_step", "max_steps", "save_steps", "train_batch_size", "best_global_step"):
        assert ours[1][name] == theirs[1][name], name
    mine, other = (torch.load(folder / "optimizer.pt", weights_only=True) for folder in (ours[2], theirs[2]))
    assert mine.keys() == other.keys()
    assert [list(group) for group in mine["param_groups"]] == [list(group) for group in other["param_groups"]]
    mine, other = (torch.load(folder / "scheduler.pt", weights_only=True) for folder in (ours[2], theirs[2]))
    assert mine == other


@pytest.mark.parametrize("limit", [1, 2])
def test_the_same_checkpoints_are_kept(both, limit):
    def run(library):
        trainer, _ = trained(
            library, save_total_limit=limit, save_steps=1, eval_strategy="steps", eval_steps=1,
            load_best_model_at_end=True, metric_for_best_model="loss", greater_is_better=True,
        )  # fmt: skip
        best = Path(trainer.state.best_model_checkpoint).name
        return sorted(path.name for path in library.folder.glob("checkpoint-*")), best

    theirs, ours = both(run)
    assert ours == theirs


class Tracker(TrainerCallback):
    """Keeps what a tracker sends: the arguments as plain values, at the begin and after the last save."""

    def __init__(self):
        self.sent = []

    def on_train_begin(self, args, state, control, **kwargs):
        paths = (args.to_dict(), args.to_sanitized_dict(), json.loads(args.to_json_string()))
        self.sent.append([args.output_dir, *(values["output_dir"] for values in paths)])

    def on_save(self, args, state, control, **kwargs):
        self.sent.append([args.output_dir, state.best_model_checkpoint])


@pytest.mark.parametrize("output_dir", ["out", "./out/", "deep/out", "."])
def test_a_relative_output_dir_stays_as_given(both, monkeypatch, output_dir):
    best = {"eval_strategy": "steps", "eval_steps": 1, "save_steps": 1, "load_best_model_at_end": True}

    def run(library):
        library.folder.mkdir()
        monkeypatch.chdir(library.folder)
        tracker = Tracker()
        trainer, _ = trained(dataclasses.replace(library, folder=output_dir), max_steps=2, callbacks=[tracker], **best)
        saved = json.loads((library.folder / output_dir / "checkpoint-2" / "trainer_state.json").read_text())
        again, _ = trained(
            dataclasses.replace(library, folder=output_dir), os.path.join(output_dir, "checkpoint-1"), max_steps=2
        )
        paths = (trainer.args.output_dir, saved["best_model_checkpoint"], again.state.best_model_checkpoint)
        return tracker.sent, trainer.state.best_model_checkpoint, paths

    theirs, ours = both(run)
    assert ours == theirs
    assert theirs[0][0] == [output_dir] * 4


def test_an_absolute_best_checkpoint_of_an_earlier_run_is_kept(both, monkeypatch):
    best = {"eval_strategy": "steps", "eval_steps": 1, "save_steps": 1, "load_best_model_at_end": True}

    def run(library):
        library.folder.mkdir()
        monkeypatch.chdir(library.folder)
        first, _ = trained(dataclasses.replace(library, folder=library.folder / "out"), max_steps=2, **best)
        assert os.path.isabs(first.state.best_model_checkpoint)
        again, weights = trained(
            dataclasses.replace(library, folder="out"), os.path.join("out", "checkpoint-2"), max_steps=2, **best
        )
        return os.path.relpath(again.state.best_model_checkpoint), weights

    (their_best, their_weights), (best_of_ours, weights) = both(run)
    assert best_of_ours == their_best
    assert all(torch.allclose(weights[name], their_weights[name], atol=1e-6) for name in weights)


def test_sharded_weights_and_those_of_torch_save_are_read(both):
    def run(library):
        trainer, weights = trained(library, **{**STEPS, "max_steps": 2})
        folder = library.folder / "checkpoint-2"
        sharded, pickled = library.folder / "sharded", library.folder / "pickled"
        for copy in (sharded, pickled):
            shutil.copytree(folder, copy)
            (copy / "model.safetensors").unlink()
            (copy / "manifest.json").unlink(missing_ok=True)  # it is changed on purpose
        trainer.model.save_pretrained(sharded, max_shard_size="10KB")
        assert (sharded / "model.safetensors.index.json").is_file()
        torch.save(trainer.model.state_dict(), pickled / "pytorch_model.bin")
        found = []
        for source in (sharded, pickled):
            again, _ = trained(library, source, **{**STEPS, "max_steps": 2})
            found.append(all(torch.equal(again.model.state_dict()[name], weights[name]) for name in weights))
        return found

    theirs, ours = both(run)
    assert ours == theirs == [True, True]


def test_changed_arguments_are_pointed_out(both, caplog):
    import logging

    def run(library):
        logger = logging.getLogger("transformers")
        trained(library, **{**STEPS, "max_steps": 2})
        caplog.clear()
        logger.addHandler(caplog.handler)
        try:
            trained(library, library.folder / "checkpoint-2", logging_steps=3 if library.is_ours else 4)
        finally:
            logger.removeHandler(caplog.handler)
        return "logging_steps" in caplog.text

    assert both(run) == (True, True)


class Counter(TrainerCallback, ExportableState):
    """Counts steps, and says in a checkpoint how far it is."""

    def __init__(self, start: int = 0):
        self.start = start
        self.steps = 0

    def on_step_end(self, args, state, control, **kwargs):
        self.steps += 1

    def state(self):
        return {"args": {"start": self.start}, "attributes": {"steps": self.steps}}


def counted(library, callbacks, restore):
    """Steps that the counters have counted after a run that was resumed at the second of five steps."""

    def trainer(**settings):
        data = {"train_dataset": sentences(), "eval_dataset": sentences(8), "callbacks": callbacks()}
        steps = {**STEPS, "eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss"}
        return library.trainer(bert_classifier(), trainer=data, **{**steps, **settings})

    trainer(max_steps=2).train()
    again = trainer(max_steps=5, restore_callback_states_from_checkpoint=restore)
    again.train(resume_from_checkpoint=True)
    return [(part.start, part.steps) for part in again.callback_handler.callbacks if type(part) is Counter]


def test_the_state_of_callbacks_is_loaded_without_a_run_and_by_an_override_of_the_method(both):
    def run(library):
        loads = []

        class Own(library.module.Trainer):
            def _load_callback_state(self):
                super()._load_callback_state()
                loads.append((self.state.global_step, self.control.should_training_stop))

        trained(library, **{**STEPS, "max_steps": 2})
        checkpoint = library.folder / "checkpoint-2"
        settings = {**STEPS, "max_steps": 2, "restore_callback_states_from_checkpoint": True}
        at_rest = library.trainer(bert_classifier(), kind=Own, **settings)
        at_rest.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        at_rest._load_callback_state()
        data = {"train_dataset": sentences()}
        library.trainer(bert_classifier(), kind=Own, trainer=data, **settings).train(str(checkpoint))
        return loads

    theirs, ours = both(run)
    assert ours == theirs == [(2, True), (2, True)]


@pytest.mark.parametrize("restore", [True, False])
def test_a_callback_goes_on_from_its_state(both, restore):
    theirs, ours = both(lambda library: counted(library, lambda: [Counter(5), EarlyStoppingCallback(3)], restore))
    assert ours == theirs == [(5, 5 if restore else 3)]


def test_callbacks_of_one_class_each_go_on_from_their_own_state(tmp_path):
    # transformers gives them the states that they had before the first step
    library = Library(mps_trainer, tmp_path)
    assert counted(library, lambda: [Counter(5), Counter(7)], True) == [(5, 5), (7, 5)]


@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_language_model_with_tied_weights_goes_on(both, tmp_path, accumulation):
    settings = {"gradient_accumulation_steps": accumulation, "per_device_train_batch_size": 3}

    def run(library, source=None):
        trainer = library.trainer(gpt2(), trainer={"train_dataset": texts()}, **{**STEPS, "max_steps": 5, **settings})
        trainer.train(resume_from_checkpoint=None if source is None else str(source))
        kept = tmp_path / f"from-{library.module.__name__}"
        shutil.copytree(library.folder / "checkpoint-2", kept, dirs_exist_ok=True)
        return trainer.state.log_history

    logs, _ = both(run)
    theirs, ours = both(
        lambda library: run(library, tmp_path / ("from-transformers" if library.is_ours else "from-mps_trainer"))
    )
    assert_same_logs(ours[:-1], logs[:-1], resumed=True)
    assert_same_logs(theirs[:-1], logs[:-1], resumed=True)


def test_nothing_to_resume_from_is_said_as_in_transformers(both):
    def run(library):
        trainer = library.trainer(bert_classifier(), trainer={"train_dataset": sentences()}, max_steps=1)
        messages = []
        for source in (True, str(library.folder / "checkpoint-9")):
            with pytest.raises((ValueError, OSError)) as caught:
                trainer.train(resume_from_checkpoint=source)
            messages.append(str(caught.value).split("(")[0].split(str(library.folder))[0])
        return messages

    theirs, ours = both(run)
    assert ours == theirs


def test_weights_that_would_run_code_are_refused(tmp_path):
    class Harmful:
        def __reduce__(self):
            return (print, ("ran",))

    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    torch.save({"weight": Harmful()}, folder / "pytorch_model.bin")
    TrainerState(epoch=1.0, global_step=1).save_to_json(str(folder / "trainer_state.json"))
    args = mps_trainer.TrainingArguments(str(tmp_path / "run"), use_cpu=True, max_steps=2, disable_tqdm=True)
    trainer = mps_trainer.Trainer(bert_classifier(), args, train_dataset=sentences())
    with pytest.raises(MisconfigurationException, match=r"pytorch_model\.bin is refused"):
        trainer.train(resume_from_checkpoint=str(folder))


@pytest.mark.parametrize("strategy", ["random", "batch_rebalance"])
def test_a_batch_size_that_transformers_found_is_trained_with_and_shown(both, tmp_path, capfd, strategy):
    def small(model, most, sizes):
        def take_memory(module, args, kwargs):
            sizes.append(len(kwargs["input_ids"]))
            if sizes[-1] > most:
                raise RuntimeError("CUDA out of memory.")

        model.register_forward_pre_hook(take_memory, with_kwargs=True)
        return model

    def run(library):
        settings = {"auto_find_batch_size": True, "per_device_train_batch_size": 9, "max_steps": 7, "save_steps": 2}
        settings |= {"save_strategy": "steps", "train_sampling_strategy": strategy if library.is_ours else "random"}
        sizes, checkpoint = [], tmp_path / "transformers" / "checkpoint-2"
        data = {"train_dataset": [{**row, "length": 8} for row in sentences()]}
        model = small(bert_classifier(), 100 if library.is_ours else 6, sizes)
        trainer = library.trainer(model, trainer=data, disable_tqdm=not library.is_ours, **settings)
        trainer.train(resume_from_checkpoint=str(checkpoint) if library.is_ours else None)
        return sizes, trainer

    (begun, _), (sizes, trainer) = both(run)
    assert begun[-1] == 6
    assert set(sizes) == {6}
    lines = capfd.readouterr().out.splitlines()
    assert "  6 examples in a step" in lines
    assert "  7 steps, 1.75 epochs of 24 examples" in lines
    bar = next(each for each in trainer.callback_handler.callbacks if isinstance(each, ProgressCallback))
    assert bar._batch == trainer.get_total_train_batch_size(trainer.args) == 6
