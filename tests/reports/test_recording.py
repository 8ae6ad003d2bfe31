"""A run leaves its record and report in its folder, however it ends."""

import copy
import json
import os
import pickle
import sys
import warnings
from dataclasses import dataclass, replace
from unittest import mock

import pytest
import torch
from transformers import TrainerCallback

from mps_trainer import MisconfigurationException, Trainer, TrainingArguments
from mps_trainer.reports import fallbacks, recorder
from mps_trainer.reports.fallbacks import FallbackWatch  # a Mac has this one; the simulated device replaces it
from mps_trainer.reports.record import NAME, PAGE
from tests.conftest import accuracy, callback, examples, messages_with, on_device, refusal

from .conftest import read_back

DRAWS = "mps_trainer.reports.pages"
SAVING = {"save_strategy": "steps", "save_steps": 2}


def kinds(record):
    return [event["kind"] for event in record["events"]]


@pytest.mark.every_device
def test_a_run_leaves_a_record_and_a_page(report_of, device, tmp_path):
    trainer, record = report_of({"compute_metrics": accuracy}, eval_strategy="steps", eval_steps=2, **SAVING)
    assert {NAME, PAGE} <= set(os.listdir(tmp_path / "run"))
    assert record["outcome"] == {"kind": "finished", "text": "", "step": 4, "max_steps": 4}
    assert record["history"] == trainer.state.log_history
    assert kinds(record) == ["begin", "evaluation", "checkpoint", "evaluation", "checkpoint", "end"]
    assert record["device"]["device"] == device
    assert record["device"]["simulated"] is (device == "mps")
    assert record["data"]["batch"] == 8
    assert record["data"]["examples"] == 40
    assert record["model"]["parameters"] == sum(p.numel() for p in trainer.model.parameters())
    assert record["changed"]["max_steps"] == [4, -1]
    assert "hub_token" not in record["changed"]  # it is not set
    first, *between, last = record["sessions"][0]["marks"]
    assert (first[0], last[0]) == (0, 4)
    assert len(between) <= 1 + 4 * record["sessions"][0]["seconds"]  # four a second
    assert last[5] > 2**20
    assert (last[3] is not None) == (device == "mps")
    assert not any(hasattr(recorder.Recorder, event) for event in vars(TrainerCallback) if "step" in event)
    assert not any(isinstance(callback, recorder.Recorder) for callback in trainer.callback_handler.callbacks)


def test_an_override_that_costs_speed_is_in_it(report_of):
    kind = type("Own", (Trainer,), {"_get_grad_norm": lambda self, model, grad_norm=None: grad_norm})
    events = report_of({"kind": kind})[1]["events"]
    said = "clipping within the optimizer's step, because _get_grad_norm is overridden"
    assert [event["text"] for event in events if event["kind"] == "off"] == [said]


def test_a_log_that_a_callback_fails_on_is_in_it(make_trainer, tmp_path):
    def fail(logs, **_):
        if "eval_loss" in logs:
            raise OSError("the tracker is gone")

    settings = {"report": True, "max_steps": 4, "eval_strategy": "steps", "eval_steps": 2}
    assert "gone" in refusal(make_trainer({"callbacks": [callback(on_log=fail)]}, **settings).train, kind=OSError)
    assert "evaluation" in kinds(read_back(tmp_path / "run"))


def test_what_a_subclass_tells_the_handler_itself_is_in_it(trained, tmp_path):
    """As the Trainer for questions and answers in transformers' examples does."""

    class Own(Trainer):
        def evaluate(self, *args, **kwargs):
            metrics = {"eval_score": 1.0}
            self.state.log_history.append({**metrics, "step": self.state.global_step})
            self.control = self.callback_handler.on_log(self.args, self.state, self.control, metrics)
            self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
            return metrics

    trainer = trained({"kind": Own}, report=True, max_steps=2)
    trainer.evaluate()
    assert read_back(tmp_path / "run")["history"][-1]["eval_score"] == 1.0


def test_no_mark_lies_between_an_evaluation_and_its_event(report_of, monkeypatch):
    monkeypatch.setattr("mps_trainer.reports.recorder._APART", 0.0)
    _, record = report_of(eval_strategy="steps", eval_steps=1)
    assert [mark[0] for mark in record["sessions"][0]["marks"]] == [0, 1, 2, 3, 4, 4]  # begin, four logs, end


def test_it_can_be_left_out(make_trainer, tmp_path):
    make_trainer(report=True).evaluate()  # an evaluation alone leaves none
    make_trainer(report=True, report_to="none", max_steps=2, **SAVING).train()
    assert os.listdir(tmp_path / "run") == ["checkpoint-2"]


@dataclass
class Quiet(TrainingArguments):
    def __post_init__(self):
        super().__post_init__()
        self.report_to = []


def test_a_report_is_written_unless_trackers_are_refused():
    assert TrainingArguments("out").writes_report
    assert TrainingArguments("out", report_to=[]).writes_report
    assert TrainingArguments(**TrainingArguments("out").to_dict()).writes_report
    assert TrainingArguments("out").set_logging(steps=5).writes_report
    assert not TrainingArguments("out", report=False).writes_report
    for again in (copy.deepcopy, lambda args: pickle.loads(pickle.dumps(args)), replace):
        assert again(TrainingArguments("out")).writes_report
        assert not again(Quiet("out")).writes_report
    args = TrainingArguments("out", report_to=["tensorboard"])
    for value in ("none", ["none"], []):  # assigned later
        args.report_to = value
        assert not args.writes_report


@pytest.fixture
def seen(trained, tmp_path, monkeypatch):
    """`seen(name)` returns a file of a run after each of four steps and after the run.

    The next page waits `cost` times the seconds of the last write.
    """

    def train(name, cost=None, **settings):
        if cost is not None:
            monkeypatch.setattr("mps_trainer.reports.recorder._RELOAD", 1e-9)
            monkeypatch.setattr("mps_trainer.reports.recorder._COST", cost)
        path, found = tmp_path / "run" / name, []
        look = callback(on_step_end=lambda **_: found.append(path.read_text() if path.exists() else ""))
        trained({"callbacks": [look]}, report=True, max_steps=4, **settings)
        return [*found, path.read_text()]

    return train


def test_an_open_page_loads_itself_again_while_the_run_lasts(seen):
    _, *running, last = seen(PAGE, cost=0)
    assert "1 of 4 steps" in running[0]
    assert "3 of 4 steps" in running[2]
    assert all("<body data-reload=" in text and ">running</span>" in text for text in running)
    assert "<body>" in last
    assert ">finished</span>" in last


def test_a_page_is_written_at_most_in_a_hundredth_of_the_time(seen):
    assert "1 of 4 steps" in seen(PAGE, cost=1e9)[3]


def test_a_checkpoint_writes_the_record_for_a_run_that_may_be_killed(seen):
    _, before, after, *_ = seen(NAME, **SAVING)
    assert before == ""
    assert json.loads(after)["outcome"] == {"kind": "running", "text": "", "step": 2, "max_steps": 4}


@pytest.mark.parametrize("killed", [False, True])
def test_a_run_that_is_resumed_goes_on_in_its_record(report_of, tmp_path, killed):
    _, record = report_of(**SAVING)
    if killed:
        outcome = {**record["outcome"], "kind": "running", "step": 4}
        (tmp_path / "run" / NAME).write_text(json.dumps({**record, "outcome": outcome}))
    _, record = report_of(resume=str(tmp_path / "run" / "checkpoint-2"), max_steps=6, **SAVING)
    assert [entry["step"] for entry in record["history"] if "loss" in entry] == [1, 2, 3, 4, 5, 6]
    faults = [event["text"] for event in record["events"] if event["kind"] == "fault"]
    assert [text.startswith("The process ended without a word") for text in faults] == [True] * killed
    assert [kind for kind in kinds(record) if kind != "fault"] == [
        *("begin", "checkpoint", "resume", "checkpoint", "checkpoint", "end")
    ]
    first, second = record["sessions"]
    assert (first["first_step"], second["first_step"]) == (0, 2)
    assert all(mark[0] <= 2 for mark in first["marks"])
    assert second["offset"] == pytest.approx(first["seconds"])
    assert record["outcome"]["step"] == 6


def test_a_damaged_record_does_not_keep_a_run_from_going_on(report_of, tmp_path):
    report_of(**SAVING)
    (tmp_path / "run" / NAME).write_text('{"generator": "mps_trainer report", "format": 1, "name": [')
    _, record = report_of(resume=True, max_steps=6, **SAVING)
    assert kinds(record)[0] == "resume"
    assert len(record["history"]) == 6 + 1


class Fails(torch.nn.Module):
    """Raises what it is given at the third update."""

    def __init__(self, error):
        super().__init__()
        self.line, self.error, self.calls = torch.nn.Linear(4, 2), error, 0

    def forward(self, x, labels=None):
        self.calls += 1
        if self.calls == 3:
            raise self.error
        return {"loss": torch.nn.functional.cross_entropy(self.line(x), labels)}


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (MisconfigurationException("a <b>row</b>\nis odd"), "fault", "MisconfigurationException: a <b>row</b> is odd"),
        (RuntimeError("a secret"), "fault", "RuntimeError at reports/test_recording.py:"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "fault", "ran out of memory in"),
        (KeyboardInterrupt(), "stop", "by SIGINT (Ctrl-C)"),
        (SystemExit(143), "stop", "by SIGTERM"),
        (SystemExit(7), "stop", "with exit status 7"),
    ],
)  # fmt: skip
def test_a_run_that_fails_leaves_what_there_is(make_trainer, tmp_path, error, kind, says):
    trainer = make_trainer({"model": Fails(error)}, report=True, max_steps=5)
    with pytest.raises(BaseException) as raised:  # noqa: PT011 - each of them
        trainer.train()
    assert raised.value is error or raised.value.__cause__ is error
    record = read_back(tmp_path / "run")
    assert kinds(record) == ["begin", kind]
    assert record["outcome"]["kind"] == {"fault": "failed", "stop": "stopped"}[kind]
    assert says in record["events"][-1]["text"]
    assert [entry["step"] for entry in record["history"]] == [1, 2]
    page = (tmp_path / "run" / PAGE).read_text()
    assert "<b>row" not in page
    assert "a secret" not in page


def test_what_is_refused_before_a_step_is_made_leaves_the_folder_as_it_was(make_trainer, tmp_path):
    model = Fails(ValueError("no"))
    model.calls = 2
    assert "no" in refusal(make_trainer({"model": model}, report=True).train, kind=ValueError)
    assert os.listdir(tmp_path / "run") == []


def test_a_run_that_warns_at_each_log_is_not_drowned_in_it(make_trainer, tmp_path, monkeypatch):
    monkeypatch.setattr("mps_trainer.reports.recorder._WARNINGS", 2)
    rows = [{**row, "x": torch.full((4,), torch.nan)} for row in examples(40)]
    make_trainer({"train_dataset": rows}, report=True, max_steps=5).train()
    said = [event["text"] for event in read_back(tmp_path / "run")["events"] if event["kind"] == "warning"]
    assert len(said) == 3
    assert "was nan at step" in said[0]
    assert said[-1] == "3 more warnings are not listed."


def test_a_report_that_cannot_be_written_is_a_line_and_the_run_goes_on(make_trainer, tmp_path, monkeypatch, caplog):
    full = OSError(28, "No space left on device", str(tmp_path / "run" / PAGE))
    monkeypatch.setattr("mps_trainer.reports.record.replace", mock.Mock(side_effect=full))
    assert make_trainer(report=True, max_steps=2).train().global_step == 2
    (line,) = messages_with(caplog, PAGE)
    assert "No space left on device" in line
    assert "\n" not in line
    assert os.listdir(tmp_path / "run") == []


@pytest.mark.parametrize("name", [NAME, PAGE])
def test_a_file_of_the_user_is_kept_with_a_warning(make_trainer, tmp_path, caplog, name):
    content = "<html>mine, compared with `mps-trainer report`</html>"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text(content)
    assert make_trainer(report=True, max_steps=4, **SAVING).train().global_step == 4
    assert (tmp_path / "run" / name).read_text() == content
    (line,) = messages_with(caplog, "is kept")
    assert f"{name} was not written by mps_trainer, and is kept. Move it, and `mps-trainer report` " in line
    assert [each for each in os.listdir(tmp_path / "run") if each.endswith(".tmp")] == []


def test_a_report_that_fails_does_not_hide_why_the_run_failed(make_trainer, monkeypatch):
    monkeypatch.setattr("mps_trainer.reports.recorder.Recorder._end", lambda recorder, error: 1 / 0)
    error = RuntimeError("the model broke")
    with pytest.raises(RuntimeError) as raised:
        make_trainer({"model": Fails(error)}, report=True, max_steps=5).train()
    assert raised.value is error


def test_without_pygal_there_is_a_record_and_a_hint(make_trainer, tmp_path, caplog, monkeypatch, without_pygal):
    monkeypatch.setattr("mps_trainer.reports.recorder._RELOAD", 1e-9)
    make_trainer(report=True, max_steps=3, logging_steps=1).train()
    assert os.listdir(tmp_path / "run") == [NAME]
    (line,) = messages_with(caplog, PAGE)
    assert "pip install pygal" in line


def test_nothing_that_draws_is_loaded_before_the_end(make_trainer, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "pygal" or name == DRAWS]:
        monkeypatch.delitem(sys.modules, name)
    loaded = set()
    looks = callback(on_train_end=lambda **_: loaded.update(sys.modules))
    make_trainer({"callbacks": [looks]}, report=True, max_steps=2, eval_strategy="steps", eval_steps=1).train()
    assert not {DRAWS, "pygal"} & loaded
    assert DRAWS in sys.modules


def test_operators_that_fell_back_are_counted_on_the_simulated_device(make_trainer, tmp_path):
    class Decomposes(Fails):
        def forward(self, x, labels=None):
            torch.mode(x.detach())
            return {"loss": torch.nn.functional.cross_entropy(self.line(x), labels)}

    with on_device("mps", fallback=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make_trainer({"model": Decomposes(None)}, report=True, max_steps=2, use_cpu=False).train()
    record = read_back(tmp_path / "run")
    assert {o["name"]: o["calls"] for o in record["fallback"]["operators"]} == {"aten::mode": 2}
    assert record["fallback"]["shapes"] > 0


def test_a_warning_of_torch_on_a_mac_is_a_name_and_no_list(monkeypatch):
    monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", "1")
    shown = []
    monkeypatch.setattr(warnings, "showwarning", lambda *details, **more: shown.append(details))
    before, watch = warnings.showwarning, FallbackWatch()
    assert "there may be more" in FallbackWatch().end()["text"]
    fell_back = "The operator 'aten::foo' is not currently supported on the MPS backend and will fall back to the CPU."
    for message in (fell_back, "something else"):
        warnings.showwarning(UserWarning(message), UserWarning, "file", 1)
    found = watch.end()
    assert (len(shown), warnings.showwarning) == (2, before)
    assert [operator["name"] for operator in found["operators"]] == ["aten::foo"]
    assert "only the first operator" in found["text"]


def test_a_report_that_cannot_be_written_watches_no_longer(make_trainer, tmp_path, monkeypatch, mps):
    watch = mock.Mock()
    monkeypatch.setattr(fallbacks, "FallbackWatch", lambda: watch)
    (tmp_path / "run" / NAME).mkdir(parents=True)
    make_trainer(report=True, max_steps=2, use_cpu=False, **SAVING).train()
    watch.end.assert_called_once_with()


def test_the_trials_of_a_search_are_compared(make_trainer, make_model, tmp_path):
    pytest.importorskip("optuna")
    trainer = make_trainer(
        {"model_init": lambda: make_model()}, report=True, max_steps=2, eval_strategy="steps", eval_steps=2
    )
    trainer.hyperparameter_search(
        hp_space=lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2)}, n_trials=2
    )
    assert [os.listdir(tmp_path / "run" / f"run-{n}") for n in (0, 1)] == [[NAME], [NAME]]
    page = (tmp_path / "run" / PAGE).read_text()
    assert "<h1>2 runs</h1>" in page
    assert "learning_rate" in page


def test_only_the_first_process_writes(make_trainer, tmp_path):
    trainer = make_trainer(report=True, max_steps=1)
    trainer.is_world_process_zero = lambda: False
    trainer.train()
    assert os.listdir(tmp_path / "run") == []
