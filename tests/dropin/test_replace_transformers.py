"""transformers' names mean this package's Trainer and arguments, if nothing was built on transformers' own before."""

from __future__ import annotations

import importlib
import sys
import types

import pytest
import torch
import transformers

import mps_trainer

from .conftest import bert_classifier, gpt2

NAMES = ["Trainer", "TrainingArguments", "Seq2SeqTrainer", "Seq2SeqTrainingArguments"]
PLACES = {
    "transformers.trainer": ["Trainer", "TrainingArguments"],
    "transformers.training_args": ["TrainingArguments"],
    "transformers.trainer_seq2seq": ["Seq2SeqTrainer", "Trainer"],
    "transformers.training_args_seq2seq": ["Seq2SeqTrainingArguments", "TrainingArguments"],
}


@pytest.fixture
def replaced():
    """The module, imported; at the end transformers' names are its own again."""
    module = importlib.import_module("mps_trainer.replace_transformers")
    module.replace()
    yield module
    module.undo()


def test_transformers_names_mean_this_packages_classes(replaced):
    for name in NAMES:
        assert getattr(transformers, name) is getattr(mps_trainer, name)
    for module, names in PLACES.items():
        for name in names:
            assert getattr(importlib.import_module(module), name) is getattr(mps_trainer, name)


def test_the_bars_that_a_trainer_has_are_those_that_the_name_means(replaced, tmp_path):
    from transformers.trainer_callback import ProgressCallback

    args = transformers.TrainingArguments(str(tmp_path), use_cpu=True, disable_tqdm=False)
    trainer = transformers.Trainer(bert_classifier(), args)
    assert trainer.callback_handler.callbacks[-1].__class__ is ProgressCallback is transformers.ProgressCallback
    replaced.undo()
    assert transformers.ProgressCallback.__module__ == "transformers.trainer_callback"


def test_it_says_so_in_one_line_and_once(replaced, capsys):
    replaced.undo()
    replaced.replace()
    replaced.replace()
    assert capsys.readouterr().err == (
        "mps_trainer: transformers.Trainer and TrainingArguments are now mps_trainer's, also for the libraries "
        "imported from here on.\n"
    )


def test_undo_puts_transformers_classes_back(replaced):
    replaced.undo()
    for module, names in {"transformers": NAMES, **PLACES}.items():
        for name in names:
            assert getattr(importlib.import_module(module), name).__module__.startswith("transformers.")
    assert issubclass(transformers.Seq2SeqTrainer, transformers.Trainer)
    replaced.undo()  # nothing more to do
    assert transformers.Trainer is not mps_trainer.Trainer


@pytest.mark.parametrize("clears", [False, True])
def test_undo_after_a_reload_puts_transformers_classes_back(replaced, monkeypatch, capsys, clears):
    """`importlib.reload` keeps the variables of a module; the autoreload of notebooks clears them before."""
    monkeypatch.setattr(sys.modules["__main__"], "Trainer", transformers.Trainer, raising=False)
    monkeypatch.setitem(sys.modules, "trl", types.ModuleType("trl"))  # imported in time
    if clears:
        kept = {name: vars(replaced)[name] for name in ("__name__", "__loader__", "__spec__", "__package__")}
        vars(replaced).clear()
        vars(replaced).update(kept)
    capsys.readouterr()
    importlib.reload(replaced)
    assert capsys.readouterr().err == ""
    assert transformers.Trainer is mps_trainer.Trainer
    replaced.undo()
    for module, names in {"transformers": NAMES, **PLACES}.items():
        for name in names:
            assert getattr(importlib.import_module(module), name).__module__.startswith("transformers.")


def test_a_trainer_and_arguments_are_instances_of_transformers_classes(replaced, tmp_path):
    class Own(transformers.Trainer):
        pass

    args = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    trainer = Own(bert_classifier(), args)
    assert isinstance(trainer, transformers.Trainer)
    assert isinstance(trainer, mps_trainer.Trainer)
    assert isinstance(args, transformers.TrainingArguments)


@pytest.mark.parametrize("library", ["trl", "sentence_transformers", "setfit"])
def test_it_refuses_to_come_after_a_library(replaced, monkeypatch, library):
    replaced.undo()
    monkeypatch.setitem(sys.modules, library, types.ModuleType(library))
    with pytest.raises(
        mps_trainer.MisconfigurationException, match=f"was imported too late: {library} was imported"
    ) as error:
        replaced.replace()
    assert "\n" not in str(error.value)
    assert "`import mps_trainer.replace_transformers` the first import" in str(error.value)
    assert transformers.Trainer is not mps_trainer.Trainer


def test_it_refuses_to_come_after_a_subclass_or_a_name_of_the_script(replaced, monkeypatch):
    replaced.undo()
    module = types.ModuleType("some_library")
    module.Own = type("Own", (transformers.Trainer,), {"__module__": "some_library"})
    monkeypatch.setitem(sys.modules, "some_library", module)
    with pytest.raises(mps_trainer.MisconfigurationException, match="too late: some_library defined Own before it"):
        replaced.replace()
    monkeypatch.delitem(sys.modules, "some_library")
    monkeypatch.setattr(sys.modules["__main__"], "Trainer", transformers.Trainer, raising=False)
    with pytest.raises(
        mps_trainer.MisconfigurationException, match="too late: this script imported Trainer before it"
    ):
        replaced.replace()


def test_accelerate_is_ready_once_there_are_arguments(replaced, tmp_path):
    state = pytest.importorskip("accelerate.state")
    utils = pytest.importorskip("accelerate.utils")
    state.AcceleratorState._reset_state(reset_partial_state=True)
    settings = {"output_dir": str(tmp_path), "use_cpu": True, "report_to": "none"}
    args = transformers.TrainingArguments(**settings)
    assert args.distributed_state is not None
    assert args.distributed_state.device == torch.device("cpu")
    assert args.distributed_state.distributed_type == "NO"
    assert args.accelerator_config.use_configured_state is False
    again = transformers.TrainingArguments(**settings, accelerator_config={"use_configured_state": True})
    assert again.accelerator_config.use_configured_state
    transformers.Trainer(bert_classifier(), args)
    utils.set_seed(3, device_specific=True)
    one = torch.rand(1)
    utils.set_seed(3)
    assert torch.equal(one, torch.rand(1))


def test_accelerates_state_follows_the_arguments_precision(replaced, tmp_path):
    state = pytest.importorskip("accelerate.state")
    for bf16 in (False, True):
        args = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", bf16=bf16)
        transformers.Trainer(bert_classifier(), args)
        assert state.AcceleratorState().mixed_precision == ("bf16" if bf16 else "no")


def test_a_run_is_the_same_as_without_it(replaced, make_data, tmp_path):
    def losses(trainer, arguments, folder):
        transformers.set_seed(0)
        settings = {"max_steps": 2, "logging_steps": 1, "report_to": "none", "use_cpu": True, "save_strategy": "no"}
        made = trainer(gpt2(), arguments(str(tmp_path / folder), **settings), train_dataset=make_data())
        made.train()
        return [entry.get("loss") for entry in made.state.log_history]

    inside = losses(transformers.Trainer, transformers.TrainingArguments, "inside")
    replaced.undo()
    assert losses(mps_trainer.Trainer, mps_trainer.TrainingArguments, "outside") == inside


@pytest.fixture
def make_data():
    def make():
        draw = torch.Generator().manual_seed(1)
        ids = torch.randint(3, 60, (16, 8), generator=draw)
        return [{"input_ids": row, "labels": row} for row in ids]

    return make


def test_arguments_of_transformers_own_class_are_refused_in_one_line(tmp_path):
    pytest.importorskip("accelerate", reason="transformers' arguments need it")
    theirs = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    with pytest.raises(
        mps_trainer.MisconfigurationException, match="Import TrainingArguments from mps_trainer"
    ) as error:
        mps_trainer.Trainer(bert_classifier(), theirs)
    assert "\n" not in str(error.value)
