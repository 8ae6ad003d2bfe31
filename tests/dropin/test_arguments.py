"""Every field and method of transformers' TrainingArguments is here, and works or is refused."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import pickle
import re
import warnings

import pytest
import torch
import transformers
from transformers.trainer_pt_utils import AcceleratorConfig

import mps_trainer
from mps_trainer import MisconfigurationException, Trainer, TrainingArguments
from mps_trainer.arguments.deprecated import DeprecatedArguments
from mps_trainer.arguments.fields import declarations

from .conftest import bert_classifier

THEIRS = {field.name: field for field in dataclasses.fields(transformers.TrainingArguments)}
OURS = {field.name: field for field in dataclasses.fields(TrainingArguments)}
# what transformers 4.50 had and 5.23 has not
DROPPED = {
    "overwrite_output_dir", "per_gpu_train_batch_size", "per_gpu_eval_batch_size", "warmup_ratio", "logging_dir",
    "save_safetensors", "no_cuda", "use_mps_device", "jit_mode_eval", "use_ipex", "fp16_opt_level", "fp16_backend",
    "half_precision_backend", "tpu_num_cores", "tpu_metrics_debug", "past_index", "fsdp_min_num_params", "tp_size",
    "fsdp_transformer_layer_cls_to_wrap", "adafactor", "group_by_length", "use_legacy_prediction_loop", "torchdynamo",
    "include_inputs_for_metrics", "evaluation_strategy", "push_to_hub_model_id", "push_to_hub_organization",
    "push_to_hub_token", "mp_parameters", "ray_scope", "dispatch_batches", "split_batches",
    "include_tokens_per_second",
}  # fmt: skip


def args(**settings):
    return TrainingArguments(output_dir="run", **settings)


def test_every_field_of_transformers_is_here():
    assert [name for name in THEIRS if name not in OURS] == []
    assert [name for name in DROPPED if name not in OURS] == []


SETTERS = [name for name in dir(transformers.TrainingArguments) if name.startswith("set_")]
GIVEN = {
    "set_training": {"learning_rate": 1e-3, "batch_size": 3, "activation_checkpointing": True, "seed": 7},
    "set_evaluate": {"strategy": "steps", "steps": 5, "accumulation_steps": 2, "delay": 1.5},
    "set_testing": {"batch_size": 4, "loss_only": True},
    "set_save": {"strategy": "epoch", "total_limit": 3},
    "set_logging": {"strategy": "steps", "steps": 7, "report_to": ["tensorboard"], "level": "info"},
    "set_push_to_hub": {"model_id": "me/it", "strategy": "end", "private_repo": True, "revision": "new"},
    "set_optimizer": {"name": "sgd", "beta1": 0.5, "args": "momentum=0.9"},
    "set_lr_scheduler": {"name": "cosine", "warmup_steps": 0.1, "max_steps": 9},
    "set_dataloader": {"train_batch_size": 5, "num_workers": 2, "prefetch_factor": 3, "sampler_seed": 4},
}


@pytest.mark.parametrize("name", SETTERS)
@pytest.mark.parametrize("given", [True, False])
def test_a_setter_sets_what_it_sets_in_transformers(name, given, tmp_path):
    assert sorted(GIVEN) == SETTERS
    if name == "set_training" and "activation_checkpointing" not in THEIRS:
        pytest.skip("transformers 5.20, the last for Python 3.10, calls it gradient_checkpointing")
    settings = GIVEN[name] if given or name == "set_push_to_hub" else {}
    ours, theirs = (kind(str(tmp_path), use_cpu=True) for kind in (TrainingArguments, transformers.TrainingArguments))
    before = {field: getattr(ours, field) for field in THEIRS}
    assert getattr(ours, name)(**settings) is ours
    getattr(theirs, name)(**settings)
    changed = [field for field in THEIRS if getattr(ours, field) != before[field]]
    for field in THEIRS:
        if field in changed or getattr(ours, field) != getattr(theirs, field):
            mine, other = getattr(ours, field), getattr(theirs, field)
            # what transformers leaves as it was given: no delay as None, report_to as a word
            left = {"eval_delay": (0, None), "report_to": ([], "none")}
            assert mine == other or (mine, other) == left.get(field), field
    assert list(inspect.signature(getattr(ours, name)).parameters) == list(
        inspect.signature(getattr(theirs, name)).parameters
    )


def test_a_setter_with_a_bad_value_changes_nothing():
    made = args()
    before = dataclasses.asdict(made)
    with pytest.raises(ValueError, match="learning_rate"):
        made.set_training(batch_size=99, learning_rate=-1)
    assert dataclasses.asdict(made) == before


REFUSED = {
    "deepspeed": ["ds.json", {"zero": 1}],
    "parallelism_config": [object()],
    "debug": ["tpu_metrics_debug"],
    "optim": ["lomo", "adalomo", "adamw_torch_xla", "adamw_torch_npu_fused"],
    "past_index": [0],
    "tp_size": [2],
    "fp16_backend": ["apex"],
    "half_precision_backend": ["apex"],
    "tpu_metrics_debug": [True],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_cannot_be_had_is_refused_with_a_way_on(name, value):
    with pytest.raises(MisconfigurationException, match=r"is not supported: .+\. (Leave|Use|Override) ") as caught:
        args(**{name: value})
    assert "\n" not in str(caught.value)


def test_every_refusal_is_tried():
    refused = {name for name, field in declarations(TrainingArguments).items() if field.refused}
    assert refused | {"tpu_metrics_debug"} == REFUSED.keys()


MOVED = [
    ({"adafactor": True}, {"optim": "adafactor"}),
    ({"group_by_length": True}, {"train_sampling_strategy": "group_by_length"}),
    ({"include_inputs_for_metrics": True}, {"include_for_metrics": ["inputs"]}),
    ({"include_tokens_per_second": True}, {"include_num_input_tokens_seen": "all"}),
    ({"torchdynamo": "eager"}, {"torch_compile": True, "torch_compile_backend": "eager"}),
    ({"push_to_hub_model_id": "it"}, {"hub_model_id": "it"}),
    ({"push_to_hub_organization": "us"}, {"hub_model_id": "us/run"}),
    ({"push_to_hub_token": "t"}, {"hub_token": "t"}),
    ({"save_safetensors": False}, {"save_safetensors": True}),
    ({"jit_mode_eval": True}, {"jit_mode_eval": False}),
    ({"use_ipex": True}, {"use_ipex": False}),
    ({"tpu_num_cores": 8}, {"tpu_num_cores": None}),
    ({"ray_scope": "all"}, {"ray_scope": "last"}),
    ({"fp16_opt_level": "O2"}, {"fp16_opt_level": "O1"}),
    ({"half_precision_backend": "cpu_amp"}, {"half_precision_backend": "auto"}),
    ({"use_legacy_prediction_loop": True}, {"use_legacy_prediction_loop": False}),
    ({"mp_parameters": "x"}, {"mp_parameters": ""}),
    ({"fsdp_min_num_params": 5}, {"fsdp_min_num_params": 0}),
]


@pytest.mark.parametrize(("given", "meant"), MOVED, ids=lambda value: next(iter(value)))
def test_a_name_that_was_dropped_means_what_it_meant_and_warns_once(given, meant):
    (name,) = given
    with pytest.warns(FutureWarning, match=f"`{name}` is deprecated") as caught:
        made = args(**given)
    assert len(caught) == 1
    assert {field: getattr(made, field) for field in meant} == meant
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dataclasses.replace(made) == made


@pytest.mark.parametrize("name", ["split_batches", "dispatch_batches"])
def test_settings_of_loaders_that_were_arguments_move_into_the_configuration(name):
    with pytest.warns(FutureWarning, match=f"`{name}` is deprecated"):
        assert getattr(args(**{name: True}).accelerator_config, name) is True


def test_the_defaults_of_dropped_names_do_not_warn():
    given = {field.name: field.default for field in dataclasses.fields(DeprecatedArguments)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert args(**given) == args()


CONFIGURATION = {
    "split_batches": True,
    "even_batches": False,
    "gradient_accumulation_kwargs": {"sync_each_batch": True},
}


@pytest.mark.parametrize("how", ["dictionary", "object", "json", "file", "path"])
def test_the_configuration_of_loaders_may_come_in_any_form(tmp_path, how):
    (tmp_path / "config.json").write_text(json.dumps(CONFIGURATION))
    forms = {
        "dictionary": CONFIGURATION,
        "object": AcceleratorConfig(**CONFIGURATION),
        "json": json.dumps(CONFIGURATION),
        "file": str(tmp_path / "config.json"),
        "path": tmp_path / "config.json",
    }
    made = args(accelerator_config=forms[how])
    assert made.accelerator_config == AcceleratorConfig(**CONFIGURATION)
    theirs = transformers.TrainingArguments(str(tmp_path), use_cpu=True, accelerator_config=dict(CONFIGURATION))
    assert made.accelerator_config == theirs.accelerator_config
    assert made.to_dict()["accelerator_config"] == theirs.to_dict()["accelerator_config"]
    assert TrainingArguments(**made.to_dict()) == made


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"batches": 1}, "batches"),
        ({"split_batches": "often"}, "split_batches='often'"),
        ("nowhere.json", "cannot be read"),
        ("{", "a JSON object"),
        (7, "must be a dictionary"),
        (AcceleratorConfig, "Tried passing in a callable"),
        ({"use_configured_state": "perhaps"}, "use_configured_state"),
    ],
)
def test_a_configuration_that_is_none_is_refused(value, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        args(accelerator_config=value)


def test_steps_of_accumulation_may_stand_in_the_configuration(tmp_path):
    kwargs = {"gradient_accumulation_kwargs": {"num_steps": 3}}
    given = TrainingArguments(str(tmp_path), use_cpu=True, accelerator_config=kwargs)
    assert Trainer(bert_classifier(), given).args.gradient_accumulation_steps == 3
    both = TrainingArguments(str(tmp_path), use_cpu=True, accelerator_config=kwargs, gradient_accumulation_steps=2)
    with pytest.raises(ValueError, match="The `AcceleratorConfig`'s `num_steps` is set but"):
        Trainer(bert_classifier(), both)


def test_tensor_float_is_refused_where_there_is_none(tmp_path):
    with pytest.raises(ValueError, match="--tf32 requires Ampere"):
        Trainer(bert_classifier(), TrainingArguments(str(tmp_path), use_cpu=True, tf32=True))
    Trainer(bert_classifier(), TrainingArguments(str(tmp_path), use_cpu=True, tf32=False))


@dataclasses.dataclass
class Extended(TrainingArguments):
    """As scripts extend them."""

    alpha: float = 0.5
    dtype: torch.dtype = torch.float32

    def __post_init__(self):
        super().__post_init__()
        self.report_to = self.report_to or ["mine"]


def test_extended_arguments_work(tmp_path):
    made = Extended(str(tmp_path), alpha=2.0, dtype=torch.bfloat16)
    assert made.to_dict()["dtype"] == "bfloat16"
    assert (made.alpha, made.report_to) == (2.0, ["mine"])


def test_arguments_are_copied_and_pickled_without_the_device(tmp_path):
    made = TrainingArguments(str(tmp_path), use_cpu=True, debug="underflow_overflow")
    assert made.device.type == "cpu"
    for again in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert again == made
        assert "device" not in vars(again)
        assert again.device.type == "cpu"


@pytest.mark.parametrize(
    "value", [None, "plain", {"a": 1}, '{"a": 1, "b": {"c": "true", "d": "2", "e": "0.5", "f": "x"}}'], ids=str
)
def test_a_field_that_a_library_adds_may_be_json(value, tmp_path):
    def of(library):
        @dataclasses.dataclass
        class Own(library.TrainingArguments):
            _VALID_DICT_FIELDS = [*library.TrainingArguments._VALID_DICT_FIELDS, "extra"]  # noqa: RUF012
            extra: dict | str | None = None

        return Own(str(tmp_path), use_cpu=True, report_to="none", extra=value).extra

    assert of(mps_trainer) == of(transformers)


def test_json_of_a_library_that_cannot_be_read_is_refused(tmp_path):
    @dataclasses.dataclass
    class Own(TrainingArguments):
        _VALID_DICT_FIELDS = [*TrainingArguments._VALID_DICT_FIELDS, "extra"]  # noqa: RUF012
        extra: dict | str | None = None

    with pytest.raises(ValueError, match=r"extra='\{wrong' is not accepted"):
        Own(str(tmp_path), extra="{wrong")


def test_the_fields_that_may_be_json_are_transformers():
    assert TrainingArguments._VALID_DICT_FIELDS == transformers.TrainingArguments._VALID_DICT_FIELDS
