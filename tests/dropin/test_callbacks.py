"""transformers' callbacks, unmodified, are told the same in the same order."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    DefaultFlowCallback,
    EarlyStoppingCallback,
    PrinterCallback,
    ProgressCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)

from tests import HUNG_AFTER

from .conftest import assert_same_logs, bert_classifier, sentences

EVENTS = [name for name in dir(TrainerCallback) if name.startswith("on_")]


class Recorder(TrainerCallback):
    """Writes down each event: where the run is, what else was passed, what is asked for next."""

    def __init__(self):
        self.events = []

    def note(self, event, args, state, control, **kwargs):
        given = {name: type(value).__name__ for name, value in kwargs.items() if name != "train_dataloader"}
        given.pop("eval_dataloader", None)
        asked = [name for name, value in vars(control).items() if value]
        self.events.append((event, state.global_step, state.epoch, sorted(given.items()), sorted(asked)))


for _event in EVENTS:
    setattr(Recorder, _event, (lambda name: lambda self, *args, **kwargs: self.note(name, *args, **kwargs))(_event))

SETTINGS = {
    "steps": {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 3, "max_steps": 7},
    "epochs": {"eval_strategy": "epoch", "save_strategy": "epoch", "num_train_epochs": 2},
    "accumulation": {"gradient_accumulation_steps": 2, "eval_on_start": True, "num_train_epochs": 2},
    "first step": {"logging_first_step": True, "logging_steps": 3, "num_train_epochs": 1},
    "no logs": {"logging_strategy": "no", "num_train_epochs": 1},
    "logs per epoch": {"logging_strategy": "epoch", "num_train_epochs": 2},
    "fractions": {"logging_steps": 0.2, "eval_strategy": "steps", "eval_steps": 0.5, "max_steps": 10},
    "best": {
        "eval_strategy": "epoch",
        "save_strategy": "best",
        "metric_for_best_model": "loss",
        "num_train_epochs": 2,
    },
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_events_and_what_comes_with_them(both, settings):
    def run(library):
        recorder = Recorder()
        data = {"train_dataset": sentences(), "eval_dataset": sentences(8), "callbacks": [recorder]}
        trainer = library.trainer(bert_classifier(), trainer=data, **settings)
        trainer.train()
        trainer.predict(sentences(8))
        return recorder.events

    theirs, ours = both(run)
    assert [event[:2] for event in ours] == [event[:2] for event in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        names = {"AcceleratedOptimizer": "AdamW"}  # Accelerate wraps the optimizer
        other = (*other[:3], [(key, names.get(kind, kind)) for key, kind in other[3]], other[4])
        assert mine == other


def test_who_is_called_and_in_which_order(both):
    def run(library):
        data = {"train_dataset": sentences(), "eval_dataset": sentences(8), "callbacks": [EarlyStoppingCallback(1)]}
        words = {"report_to": library.module.TrainingArguments("out", use_cpu=True).report_to}  # of nobody
        quiet = library.trainer(bert_classifier(), trainer=data, **words)
        shown = library.trainer(bert_classifier(), trainer=data, disable_tqdm=False, **words)
        return [
            [next(base.__name__ for base in type(c).__mro__ if base.__module__.startswith("transformers")) for c in t]
            for t in (quiet.callback_handler.callbacks, shown.callback_handler.callbacks)
        ]

    theirs, ours = both(run)
    assert ours == theirs
    assert ours[0] == [DefaultFlowCallback.__name__, EarlyStoppingCallback.__name__, PrinterCallback.__name__]
    assert ours[1][-1] == ProgressCallback.__name__


@pytest.mark.parametrize("patience", [1, 2])
def test_early_stopping(both, patience):
    def run(library):
        data = {
            "train_dataset": sentences(),
            "eval_dataset": sentences(8),
            "callbacks": [EarlyStoppingCallback(patience, early_stopping_threshold=10.0)],
        }
        settings = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
        trainer = library.trainer(
            bert_classifier(), trainer=data, max_steps=9, load_best_model_at_end=True, save_total_limit=2, **settings
        )
        trainer.train()
        weights = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
        return trainer.state.log_history, trainer.state.best_global_step, weights

    theirs, ours = both(run)
    assert_same_logs(ours[0], theirs[0])
    assert ours[1] == theirs[1]
    assert all(torch.allclose(ours[2][name], theirs[2][name], atol=1e-6) for name in ours[2])


def test_a_callback_that_takes_the_control_over(both):
    class Takes(TrainerCallback):
        def on_step_end(self, args, state: TrainerState, control: TrainerControl, **kwargs):
            if state.global_step == 2:
                control.should_evaluate = True
            if state.global_step == 3:
                control.should_save = True
            if state.global_step == 4:
                control.should_epoch_stop = True
            if state.global_step == 5:
                control.should_training_stop = True
            return control

    def run(library):
        data = {"train_dataset": sentences(48), "eval_dataset": sentences(8), "callbacks": [Takes()]}
        trainer = library.trainer(bert_classifier(), trainer=data, num_train_epochs=3)
        trainer.train()
        return trainer.state.log_history, sorted(path.name for path in library.folder.glob("checkpoint-*"))

    theirs, ours = both(run)
    assert_same_logs(ours[0], theirs[0])
    assert ours[1] == theirs[1] == ["checkpoint-3"]


def test_callbacks_are_added_removed_and_taken_out(both):
    class Mine(TrainerCallback):
        pass

    def run(library):
        trainer = library.trainer(bert_classifier(), trainer={"callbacks": [Mine]})
        names = []

        def note():
            names.append([type(c).__name__ for c in trainer.callback_handler.callbacks if type(c) is Mine])

        note()
        popped = trainer.pop_callback(Mine)
        note()
        trainer.add_callback(popped)
        trainer.add_callback(Mine())
        note()
        trainer.remove_callback(popped)
        note()
        trainer.remove_callback(Mine)
        note()
        return names, type(popped).__name__

    theirs, ours = both(run)
    assert ours == theirs


def test_tensorboard_gets_the_same_files_and_scalars(both, monkeypatch):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def run(library):
        monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(library.folder / "events"))
        data = {"train_dataset": sentences(), "eval_dataset": sentences(8)}
        trainer = library.trainer(
            bert_classifier(), trainer=data, report_to="tensorboard", max_steps=3, eval_strategy="epoch"
        )
        trainer.train()
        events = EventAccumulator(str(library.folder / "events"))
        events.Reload()
        return {
            tag: [event.value for event in events.Scalars(tag)]
            for tag in events.Tags()["scalars"]
            if not any(word in tag for word in ("runtime", "per_second"))
        }

    theirs, ours = both(run)
    assert ours.keys() == theirs.keys()
    for tag, values in theirs.items():
        assert ours[tag] == pytest.approx(values, abs=1e-5), tag


SIGNALLED = """
import os, signal, sys
sys.path[:0] = [{root!r}]
from transformers import TrainerCallback
from {module} import Trainer, TrainingArguments
from tests.dropin.conftest import bert_classifier, sentences

class Ends(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

args = TrainingArguments({folder!r}, use_cpu=True, report_to="none", disable_tqdm=True, max_steps=200000,
                         save_strategy="no", enable_jit_checkpoint=True)
trainer = Trainer(bert_classifier(), args, train_dataset=sentences(), callbacks=[Ends()])
for callback in trainer.callback_handler.callbacks:
    if getattr(callback, "jit_manager", None):
        callback.jit_manager.kill_wait = 0.2
trainer.train()
print("stopped at", trainer.state.global_step)
"""


@pytest.mark.integration
@pytest.mark.parametrize("module", [pytest.param("transformers", marks=pytest.mark.acceptance), "mps_trainer"])
def test_a_process_that_is_told_to_end_saves_first(tmp_path, module):
    import re
    import subprocess
    import sys
    from pathlib import Path

    root = str(Path(__file__).parents[2])
    code = SIGNALLED.format(root=root, module=module, folder=str(tmp_path / "run"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HUNG_AFTER)
    assert done.returncode == 0, done.stderr
    step = int(re.search(r"stopped at (\d+)", done.stdout)[1])
    (saved,) = (tmp_path / "run").glob("checkpoint-*")
    assert step - int(saved.name.removeprefix("checkpoint-")) in (0, 1)
    assert not (saved / "checkpoint-is-incomplete.txt").exists()
    assert (saved / "model.safetensors").is_file()
    assert (saved / "optimizer.pt").is_file()
