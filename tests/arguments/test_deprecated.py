"""Names of earlier releases: one FutureWarning each, at the caller's line, and the effect they always had."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import warnings
from dataclasses import dataclass

import pytest
from transformers import HfArgumentParser

from mps_trainer import TrainingArguments

# field, value, its replacement as the warning names it, what the arguments hold instead
OLD = [
    ("use_mps_device", True, "accelerator=mps", {"accelerator": "mps", "use_mps_device": False}),
    ("no_cuda", True, "use_cpu", {"use_cpu": True, "no_cuda": False}),
    ("evaluation_strategy", "epoch", "eval_strategy", {"eval_strategy": "epoch", "do_eval": True}),
    ("evaluation_strategy", "steps", "eval_strategy", {"eval_strategy": "steps", "eval_steps": 500}),
    ("evaluation_strategy", False, "eval_strategy", {"eval_strategy": "no", "do_eval": False}),
    ("per_gpu_train_batch_size", 4, "per_device_train_batch_size", {"per_device_train_batch_size": 4}),
    ("per_gpu_train_batch_size", "4", "per_device_train_batch_size", {"train_batch_size": 4}),
    ("per_gpu_eval_batch_size", 64, "per_device_eval_batch_size", {"eval_batch_size": 64}),
    ("warmup_ratio", 0.06, "warmup_steps", {"warmup_steps": 0.06, "warmup_ratio": None}),
    ("logging_dir", "logs", "TENSORBOARD_LOGGING_DIR", {"logging_dir": "logs"}),
]


def future_warnings(caught) -> list[warnings.WarningMessage]:
    return [warning for warning in caught if warning.category is FutureWarning]


@pytest.fixture
def caught():
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        yield record


@pytest.mark.parametrize(("name", "value", "replacement", "held"), OLD)
def test_an_old_name_warns_once_and_does_what_it_did(caught, name, value, replacement, held):
    args = TrainingArguments(**{name: value})
    (warning,) = future_warnings(caught)
    message = str(warning.message)
    assert message.startswith(f"`{name}` is deprecated, and will be removed in mps_trainer 1.0: ")
    assert replacement in message
    assert {field: getattr(args, field) for field in held} == held
    if name not in held:
        assert getattr(args, name) is None


def test_one_of_several_processes_warns(caught, monkeypatch):
    for rank, warned in ((1, 0), (0, 1)):
        for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}.items():
            monkeypatch.setenv(name, str(value))
        TrainingArguments(no_cuda=True)
        assert len(future_warnings(caught)) == warned


@pytest.mark.parametrize("ratio", [0, 0.0, 0.1, 0.25, 0.999, 1, 1.0])
def test_a_warmup_ratio_is_the_same_number_of_steps_as_ever(caught, ratio):
    args = TrainingArguments(warmup_ratio=ratio)
    assert [args.get_warmup_steps(steps) for steps in (10, 997)] == [math.ceil(steps * ratio) for steps in (10, 997)]


def test_a_number_of_warmup_steps_goes_before_the_ratio(caught):
    assert TrainingArguments(warmup_ratio=0.5, warmup_steps=20).warmup_steps == 20


@pytest.mark.parametrize(("name", "value", "replacement", "held"), [row for row in OLD if row[0] != "logging_dir"])
def test_a_copy_does_not_warn_again(caught, name, value, replacement, held):
    args = TrainingArguments(**{name: value})
    caught.clear()
    copy = dataclasses.replace(args, run_name="again")
    assert future_warnings(caught) == []
    assert {field: getattr(copy, field) for field in held} == held


@pytest.mark.parametrize(("name", "value", "replacement", "held"), [row for row in OLD if row[0] != "logging_dir"])
def test_arguments_made_from_a_dictionary_do_not_warn_again(caught, name, value, replacement, held):
    args = TrainingArguments(**{name: value})
    caught.clear()
    assert TrainingArguments(**args.to_dict()) == args
    assert TrainingArguments(**json.loads(args.to_json_string())) == args
    assert future_warnings(caught) == []


@dataclass
class Extended(TrainingArguments):
    extra: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()


def test_an_old_name_goes_before_the_default_of_a_subclass(caught):
    @dataclass
    class WithOptimizer(TrainingArguments):
        optim: str = "sgd"

    assert WithOptimizer(adafactor=True).optim == "adafactor"


def line_after(frame) -> int:
    return frame.f_lineno + 1


@pytest.mark.parametrize("kind", [TrainingArguments, Extended])
def test_the_warning_points_at_the_line_that_asked(caught, kind, tmp_path):
    here = inspect.currentframe()
    lines = [line_after(here)]
    args = kind(no_cuda=True, warmup_ratio=0.1)
    lines.append(line_after(here))
    dataclasses.replace(args, per_gpu_eval_batch_size=4)
    lines.append(line_after(here))
    HfArgumentParser(kind).parse_args_into_dataclasses(["--no_cuda"])
    (tmp_path / "args.json").write_text('{"no_cuda": true}')
    lines.append(line_after(here))
    HfArgumentParser(kind).parse_json_file(str(tmp_path / "args.json"))
    warned = future_warnings(caught)
    assert {warning.filename for warning in warned} == {__file__}
    assert [warning.lineno for warning in warned] == [lines[0], *lines]


def test_the_warning_points_into_a_class_that_holds_arguments(caught):
    class Run:
        def __init__(self) -> None:
            self.line = line_after(inspect.currentframe())
            self.args = TrainingArguments(no_cuda=True)

    run = Run()
    assert [(warning.filename, warning.lineno) for warning in future_warnings(caught)] == [(__file__, run.line)]
