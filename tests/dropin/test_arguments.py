"""Setters, removed names and configurations of transformers' TrainingArguments work as there or are refused."""

import dataclasses
import inspect
import json
import re

import pytest
import transformers
from transformers.trainer_pt_utils import AcceleratorConfig

import mps_trainer
from mps_trainer import Trainer, TrainingArguments
from mps_trainer.arguments.fields import declarations
from tests.conftest import refusal

from .conftest import CHECKPOINTING, bert_classifier

THEIRS = {field.name: field for field in dataclasses.fields(transformers.TrainingArguments)}


def args(**settings):
    return TrainingArguments(output_dir="run", **settings)


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
def test_setter_sets_fields_of_transformers(name, given, tmp_path):
    assert sorted(GIVEN) == SETTERS
    if name == "set_training" and "activation_checkpointing" not in THEIRS:
        pytest.skip("transformers 5.20, the last for Python 3.10, calls it gradient_checkpointing")
    settings = GIVEN[name] if given or name == "set_push_to_hub" else {}
    ours, theirs = (kind(str(tmp_path), use_cpu=True) for kind in (TrainingArguments, transformers.TrainingArguments))
    before = {field: getattr(ours, field) for field in THEIRS}
    assert getattr(ours, name)(**settings) is ours
    getattr(theirs, name)(**settings)
    # transformers keeps some values as they were given: eval_delay as None, report_to as a word
    as_given = {"eval_delay": (0, None), "report_to": ([], "none")}
    for field in THEIRS:
        mine, other = getattr(ours, field), getattr(theirs, field)
        if mine != before[field] or mine != other:
            assert mine == other or (mine, other) == as_given.get(field), field
    parameters = [list(inspect.signature(getattr(args, name)).parameters) for args in (ours, theirs)]
    assert parameters[0] == parameters[1]


def test_setter_with_bad_value_changes_nothing():
    made = args()
    before = dataclasses.asdict(made)
    for settings, said in (({"learning_rate": -1}, "learning_rate"), ({CHECKPOINTING: 3}, "true or false")):
        assert re.search(said, refusal(made.set_training, batch_size=99, **settings))
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
def test_unsupported_argument_is_refused_with_alternative(name, value):
    assert re.search(r"is not supported: .+\. (Leave|Use|Override) ", refusal(args, **{name: value}))


def test_every_refusal_is_tried():
    refused = {name for name, field in declarations(TrainingArguments).items() if field.refused}
    assert refused | {"tpu_metrics_debug"} == REFUSED.keys()


CONFIGURATION = {
    "split_batches": True,
    "even_batches": False,
    "gradient_accumulation_kwargs": {"sync_each_batch": True},
}


@pytest.mark.parametrize("how", ["dictionary", "object", "json", "file", "path"])
def test_accelerator_config_takes_all_forms(tmp_path, how):
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
        ("nowhere.json", "nowhere.json"),
        ("{", "JSON"),
        (7, "dictionary"),
        (AcceleratorConfig, "callable"),
        ({"use_configured_state": "perhaps"}, "use_configured_state"),
    ],
)
def test_invalid_accelerator_config_is_refused(value, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        args(accelerator_config=value)


def test_accumulation_steps_of_accelerator_config_are_used(tmp_path):
    kwargs = {"gradient_accumulation_kwargs": {"num_steps": 3}}
    given = TrainingArguments(str(tmp_path), use_cpu=True, accelerator_config=kwargs)
    assert Trainer(bert_classifier(), given).args.gradient_accumulation_steps == 3
    both = TrainingArguments(str(tmp_path), use_cpu=True, accelerator_config=kwargs, gradient_accumulation_steps=2)
    assert "num_steps" in refusal(Trainer, bert_classifier(), both)


def test_tf32_is_refused_without_ampere(tmp_path):
    assert "tf32" in refusal(Trainer, bert_classifier(), TrainingArguments(str(tmp_path), use_cpu=True, tf32=True))
    Trainer(bert_classifier(), TrainingArguments(str(tmp_path), use_cpu=True, tf32=False))


@pytest.mark.parametrize(
    "value", [None, "plain", {"a": 1}, '{"a": 1, "b": {"c": "true", "d": "2", "e": "0.5", "f": "x"}}'], ids=str
)
def test_subclass_reads_json_of_its_own_dict_field(value, tmp_path):
    new = {"activation_checkpointing_kwargs"} - THEIRS.keys()
    assert {*TrainingArguments._VALID_DICT_FIELDS} - new == {*transformers.TrainingArguments._VALID_DICT_FIELDS}

    def make(library, value):
        @dataclasses.dataclass
        class Own(library.TrainingArguments):
            _VALID_DICT_FIELDS = [*library.TrainingArguments._VALID_DICT_FIELDS, "extra"]  # noqa: RUF012
            extra: dict | str | None = None

        return Own(str(tmp_path), use_cpu=True, report_to="none", extra=value).extra

    assert make(mps_trainer, value) == make(transformers, value)
    assert "extra=" in refusal(make, mps_trainer, "{wrong")


@pytest.mark.parametrize("level", ["info", "warning", "error"])
def test_verbosity_of_transformers_decides_on_progress_bar(tmp_path, level):
    before = transformers.logging.get_verbosity()
    try:
        getattr(transformers.logging, f"set_verbosity_{level}")()
        made = [kind(str(tmp_path), use_cpu=True) for kind in (TrainingArguments, transformers.TrainingArguments)]
    finally:
        transformers.logging.set_verbosity(before)
    assert [args.disable_tqdm for args in made] == [level == "error"] * 2
