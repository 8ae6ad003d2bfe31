"""transformers' own callbacks get the same events in the same order, and do the same."""

import os
import signal

import pytest
from torch import nn
from transformers import EarlyStoppingCallback

from ..conftest import callback, refusal
from .conftest import recorder, sentences

SETTINGS = {
    "steps": {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 3, "max_steps": 7},
    "epochs": {"eval_strategy": "epoch", "save_strategy": "epoch", "num_train_epochs": 2},
    "accumulation": {"gradient_accumulation_steps": 2, "eval_on_start": True, "num_train_epochs": 2},
    "first step": {"logging_first_step": True, "logging_steps": 3, "num_train_epochs": 1},
    "no logs": {"logging_strategy": "no", "num_train_epochs": 1},
    "logs per epoch": {"logging_strategy": "epoch", "num_train_epochs": 2},
    "fractions": {"logging_steps": 0.2, "eval_strategy": "steps", "eval_steps": 0.5, "max_steps": 10},
    "best": {
        "eval_strategy": "epoch", "save_strategy": "best", "metric_for_best_model": "loss", "num_train_epochs": 2,
    },
}  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_events_have_order_and_arguments_of_transformers(assert_same_runs, settings):
    def run(library):
        events = []
        library.trained(callbacks=[recorder(events)], **settings).predict(sentences(8))
        return events

    assert_same_runs(run)


def test_default_callbacks_have_order_of_transformers(both):
    def run(library):
        found = []
        for is_quiet in (True, False):
            report_to = library.module.TrainingArguments("out", use_cpu=True).report_to  # the default
            callbacks = [EarlyStoppingCallback(1)]
            trainer = library.trainer(callbacks=callbacks, disable_tqdm=is_quiet, report_to=report_to)
            classes = [type(each).__mro__ for each in trainer.callback_handler.callbacks]
            found.append([next(c.__name__ for c in mro if c.__module__.startswith("transformers")) for mro in classes])
        return found

    theirs, ours = both(run)
    common = ["DefaultFlowCallback", "EarlyStoppingCallback"]
    assert ours == theirs == [[*common, "PrinterCallback"], [*common, "ProgressCallback"]]


@pytest.mark.parametrize("patience", [1, 2])
def test_early_stopping_ends_at_same_step_with_same_best_weights(assert_same_runs, patience):
    def run(library):
        settings = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
        settings |= {"max_steps": 9, "load_best_model_at_end": True, "save_total_limit": 2}
        stops = EarlyStoppingCallback(patience, early_stopping_threshold=10.0)
        trainer = library.trained(callbacks=[stops], **settings)
        return trainer, trainer.state.best_global_step, trainer.model.state_dict()

    assert_same_runs(run)


def test_callback_that_sets_the_control_evaluates_saves_and_stops(assert_same_runs):
    flags = ["should_evaluate", "should_save", "should_epoch_stop", "should_training_stop"]

    def ask(state, control, **_):
        if state.global_step > 1:
            setattr(control, flags[state.global_step - 2], True)

    def run(library):
        asks = callback(on_step_end=ask)
        trainer = library.trained(train_dataset=sentences(48), callbacks=[asks], num_train_epochs=3)
        return trainer, sorted(path.name for path in library.folder.glob("checkpoint-*"))

    assert assert_same_runs(run)[1] == ["checkpoint-3"]


def test_callback_that_raises_accumulation_makes_larger_steps(assert_same_runs):
    def raise_it(args, state, **_):
        args.gradient_accumulation_steps = 1 + int(state.epoch)

    def summed(outputs, labels, num_items_in_batch=None):
        return nn.functional.cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch

    given = {"compute_loss_func": summed, "callbacks": [callback(on_epoch_begin=raise_it)], "num_train_epochs": 2}
    trainer = assert_same_runs(lambda library: library.trained(**given))
    assert trainer.state.global_step == 3 + 2  # an epoch has 3 batches


def test_part_that_a_callback_puts_in_eval_mode_trains_with_dropout_again(assert_same_runs):
    switch = callback(on_step_end=lambda model, **_: model.bert.eval())
    assert_same_runs(lambda library: library.trained(callbacks=[switch]))


@pytest.mark.parametrize("name", ["nonsense", "clearml"])
def test_tracker_that_cannot_be_had_is_refused_in_one_line(make_trainer, name):
    assert f"report_to=['{name}'] cannot be used: " in refusal(make_trainer, report_to=name)


def test_tensorboard_gets_same_scalars(assert_same_runs, monkeypatch):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def run(library):
        monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(library.folder / "events"))
        library.trained(report_to="tensorboard", max_steps=3, eval_strategy="epoch")
        events = EventAccumulator(str(library.folder / "events"))
        events.Reload()
        return {tag: [event.value for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}

    assert_same_runs(run)


@pytest.mark.filterwarnings("ignore:`logging_dir:FutureWarning")
def test_each_trainer_logs_to_its_own_logging_dir(make_trainer, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        make_trainer(report_to="tensorboard", logging_dir=str(folder), max_steps=1).train()
    assert [len(list(folder.iterdir())) for folder in folders] == [1, 1]
    assert "TENSORBOARD_LOGGING_DIR" not in os.environ


def test_run_saves_before_it_ends_on_sigterm(library):
    def end(state, **_):
        if state.global_step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    ends = callback(on_step_end=end)
    trainer = library.trainer(callbacks=[ends], max_steps=200_000, logging_steps=1000, enable_jit_checkpoint=True)
    for each in trainer.callback_handler.callbacks:
        if getattr(each, "jit_manager", None):
            each.jit_manager.kill_wait = 0.2
    step = trainer.train().global_step
    (saved,) = library.folder.glob("checkpoint-*")
    assert step - int(saved.name.removeprefix("checkpoint-")) in (0, 1)
    assert {"model.safetensors", "optimizer.pt"} < {path.name for path in saved.iterdir()}
    assert not (saved / "checkpoint-is-incomplete.txt").exists()
