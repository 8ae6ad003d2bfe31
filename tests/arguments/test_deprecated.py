"""Names of earlier releases: one FutureWarning each, at the caller's line, and the effect they always had."""

import dataclasses
import inspect
import json
import math
import warnings

import pytest
from transformers import HfArgumentParser
from transformers.trainer_pt_utils import AcceleratorConfig

from mps_trainer import TrainingArguments
from mps_trainer.arguments.deprecated import DeprecatedArguments

from .test_argument_parser import Extended

# field, value, what the arguments hold instead
OLD = [
    ("use_mps_device", True, {"accelerator": "mps", "use_mps_device": None}),
    ("no_cuda", True, {"use_cpu": True, "no_cuda": False}),
    ("evaluation_strategy", "epoch", {"eval_strategy": "epoch", "do_eval": True, "evaluation_strategy": None}),
    ("evaluation_strategy", "steps", {"eval_strategy": "steps", "eval_steps": 500}),
    ("evaluation_strategy", False, {"eval_strategy": "no", "do_eval": False}),
    ("per_gpu_train_batch_size", 4, {"per_device_train_batch_size": 4, "per_gpu_train_batch_size": None}),
    ("per_gpu_train_batch_size", "4", {"train_batch_size": 4}),
    ("per_gpu_eval_batch_size", 64, {"eval_batch_size": 64, "per_gpu_eval_batch_size": None}),
    ("warmup_ratio", 0.06, {"warmup_steps": 0.06, "warmup_ratio": None}),
    ("adafactor", True, {"optim": "adafactor"}),
    ("group_by_length", True, {"train_sampling_strategy": "group_by_length"}),
    ("include_inputs_for_metrics", True, {"include_for_metrics": ["inputs"]}),
    ("include_tokens_per_second", True, {"include_num_input_tokens_seen": "all"}),
    ("torchdynamo", "eager", {"torch_compile": True, "torch_compile_backend": "eager"}),
    ("push_to_hub_model_id", "it", {"hub_model_id": "it"}),
    ("push_to_hub_organization", "us", {"hub_model_id": "us/trainer_output"}),
    ("push_to_hub_token", "t", {"hub_token": "t"}),
    ("split_batches", True, {"accelerator_config": AcceleratorConfig(split_batches=True)}),
    ("dispatch_batches", True, {"accelerator_config": AcceleratorConfig(dispatch_batches=True)}),
]
IGNORED = {
    "save_safetensors": False, "jit_mode_eval": True, "use_ipex": True, "tpu_num_cores": 8, "ray_scope": "all",
    "fast_dropout": True,
    "fp16_opt_level": "O2", "half_precision_backend": "cpu_amp", "fp16_backend": "cuda_amp", "mp_parameters": "x",
    "use_legacy_prediction_loop": True, "fsdp_min_num_params": 5, "fsdp_transformer_layer_cls_to_wrap": "Layer",
}  # fmt: skip
DEFAULTS = {field.name: field.default for field in dataclasses.fields(DeprecatedArguments)}
OLD += [(name, value, {name: DEFAULTS[name]}) for name, value in IGNORED.items()]


def future_warnings(caught) -> list[warnings.WarningMessage]:
    return [warning for warning in caught if warning.category is FutureWarning]


@pytest.fixture
def caught():
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        yield record


@pytest.mark.parametrize("more", [{}, {"use_cpu": True}, {"accelerator": "cpu"}], ids=str)
def test_use_mps_device_false_alone_warns_that_it_does_not_mean_the_cpu(caught, more):
    args = TrainingArguments(use_mps_device=False, **more)
    assert ["Set use_cpu=True" in str(warning.message) for warning in future_warnings(caught)] == [True] * (not more)
    assert args.use_mps_device is None


@pytest.mark.parametrize(
    ("words", "accelerator"),
    [(["--use_mps_device"], "mps"), (["--use_mps_device", "True"], "mps"), (["--use_mps_device", "False"], "auto")],
)
def test_use_mps_device_is_a_flag(words, accelerator):
    with pytest.warns(FutureWarning):
        (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(words)
    assert args.accelerator == accelerator


@pytest.mark.parametrize(("name", "value", "held"), OLD)
def test_an_old_name_warns_once_and_its_copies_do_not(caught, name, value, held):
    args = TrainingArguments(**{name: value})
    (warning,) = future_warnings(caught)
    ignored = " and ignored" if name in IGNORED else ""
    said = f"`{name}` is deprecated{ignored}, and will be removed in mps_trainer 1.0: "
    assert str(warning.message).startswith(said)
    caught.clear()
    for copy in (args, dataclasses.replace(args, run_name="again")):
        assert {field: getattr(copy, field) for field in held} == held
    if name != "push_to_hub_token":  # tokens are not written down
        assert TrainingArguments(**args.to_dict()) == args
        assert TrainingArguments(**json.loads(args.to_json_string())) == args
    assert future_warnings(caught) == []


def test_defaults_of_old_names_do_not_warn_and_a_folder_of_logs_does(caught):
    assert TrainingArguments(**DEFAULTS) == TrainingArguments()
    assert future_warnings(caught) == []
    assert TrainingArguments(logging_dir="logs").logging_dir == "logs"
    assert "TENSORBOARD_LOGGING_DIR" in str(future_warnings(caught)[0].message)


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


def test_a_number_goes_before_a_ratio_and_an_old_name_before_the_default_of_a_subclass(caught):
    assert TrainingArguments(warmup_ratio=0.5, warmup_steps=20).warmup_steps == 20

    class WithOptimizer(TrainingArguments):
        optim: str = "sgd"

    assert WithOptimizer(adafactor=True).optim == "adafactor"


@pytest.mark.parametrize(
    ("default", "given", "steps"),
    [
        (0.0, {}, 0),
        (0.0, {"warmup_ratio": 0.1}, 0.1),
        (0.1, {}, 0.1),
        (0.1, {"warmup_steps": 0.2}, 0.2),
        (0.1, {"warmup_ratio": 0}, 0),
    ],
)
def test_a_ratio_that_a_subclass_declares_as_a_number_stays_one(caught, default, given, steps):
    fields = [("warmup_ratio", float, default)]
    args = dataclasses.make_dataclass("Own", fields, bases=(TrainingArguments,))(**given)
    for each in (args, dataclasses.replace(args, warmup_ratio=args.warmup_ratio)):
        assert (each.warmup_steps, each.warmup_ratio) == (steps, 0.0)
    assert len(future_warnings(caught)) == (given.get("warmup_ratio", 0) > 0)


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
