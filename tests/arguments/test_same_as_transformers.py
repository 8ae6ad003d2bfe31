"""Names, types, defaults and derived values are those of transformers' own TrainingArguments."""

import dataclasses
import inspect
import typing
from types import SimpleNamespace

import pytest
import torch
import transformers

import mps_trainer
from mps_trainer import TrainingArguments
from mps_trainer.arguments.deprecated import DeprecatedArguments

# field -> why it is not as in transformers
DELIBERATE_TYPES = {
    "liger_kernel_config": "text on the command line, where transformers' parser takes none",
    "output_dir": "it is never None once the arguments exist",
    "activation_checkpointing": "true or false once the arguments exist, so that code that reads it need not ask",
    "gradient_checkpointing": "as activation_checkpointing",
    "parallelism_config": "a class of Accelerate's, which need not be installed; whatever is given is refused",
    "train_sampling_strategy": "an enum, so that a wrong word is argparse's one-line error",
}
OURS_ONLY = {
    "accelerator": "the choice of the device",
    "devices": "the choice of the device",
    "chunked_cross_entropy": "the loss of language models without their logits",
    "chunked_attention": "attention without the scores of all pairs of tokens",
    "padding_free": "transformers computes padding",
    "skip_unread_tokens": "transformers computes the last layer for all tokens, with dropout for each of them",
    "num_length_buckets": "for bucket_by_length, a strategy of our own",
    "stop_on_nan": "a run that goes wrong can be told to end before the weights do",
    "save_async": "checkpoints are written beside training",
    "save_on_signal": "a run that is told to end is saved",
    "memory_guard": "transformers leaves memory on mps to torch, which lets a Mac swap",
    "memory_fraction": "the limit of memory_guard",
    "keep_awake": "transformers lets a Mac sleep in the middle of a run",
    "report": "a run leaves report.html in output_dir",
    **{field.name: "removed from transformers or this package" for field in dataclasses.fields(DeprecatedArguments)},
}
OLD_NAMES = {field.name for field in dataclasses.fields(DeprecatedArguments)}

OURS = {field.name: field for field in dataclasses.fields(TrainingArguments)}
THEIRS = {field.name: field for field in dataclasses.fields(transformers.TrainingArguments)}
OUR_HINTS = typing.get_type_hints(TrainingArguments)
THEIR_HINTS = typing.get_type_hints(transformers.TrainingArguments)
SHARED = sorted(OURS.keys() & THEIRS.keys())

pytestmark = pytest.mark.skipif(
    "activation_checkpointing" not in THEIRS,
    reason="The arguments are those of transformers 5.23; Python 3.10 ends at 5.20, which has fewer.",
)


def members(hint) -> set[str]:
    """The types of a union by bare name: two enums of one name are one type here, and dict is dict[str, Any]."""
    parts = typing.get_args(hint) if type(None) in typing.get_args(hint) or str in typing.get_args(hint) else (hint,)
    return {"dict" if typing.get_origin(part) is dict else getattr(part, "__name__", str(part)) for part in parts}


@pytest.fixture
def theirs(monkeypatch):
    """transformers' arguments as they are on a CPU, where Accelerate need not be installed."""
    monkeypatch.setattr(transformers.TrainingArguments, "_setup_devices", torch.device("cpu"))

    def make(**settings):
        args = transformers.TrainingArguments(**settings)
        args._n_gpu = 0
        args.accelerator_config.pop("use_configured_state")  # making the device removes it too
        args.distributed_state = None
        return args

    return make


@pytest.mark.parametrize("name", [name for name in SHARED if name not in DELIBERATE_TYPES])
def test_a_shared_field_has_the_type_of_transformers(name):
    assert members(OUR_HINTS[name]) == members(THEIR_HINTS[name])


SETTINGS = [
    {},
    {"output_dir": "~/run"},
    {"eval_strategy": "steps", "logging_steps": 7},
    {"eval_strategy": "steps", "eval_steps": 20.0, "save_steps": 40.0, "load_best_model_at_end": True},
    {"eval_strategy": "steps", "eval_steps": 0.1, "save_steps": 0.3, "load_best_model_at_end": True},
    {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True},
    {"eval_strategy": "epoch", "save_strategy": "best", "metric_for_best_model": "accuracy"},
    {"eval_strategy": "epoch", "lr_scheduler_type": "reduce_lr_on_plateau"},
    {"metric_for_best_model": "eval_loss"},
    {"metric_for_best_model": "f1", "greater_is_better": False},
    {"activation_checkpointing": True},
    {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
    {"activation_checkpointing": False, "gradient_checkpointing": True},
    {"activation_checkpointing_kwargs": '{"use_reentrant": true}'},
    {"gradient_checkpointing_kwargs": '{"use_reentrant": "false", "early_stop": "1", "context": "0.5"}'},
    {"lr_scheduler_kwargs": '{"num_cycles": 2}', "lr_scheduler_type": "cosine_with_restarts"},
    {"report_to": "none"},
    {"report_to": "all"},
    {"report_to": ["all"]},
    {"report_to": "tensorboard"},
    {"report_to": ["tensorboard", "wandb"]},
    {"use_cpu": True, "bf16": True},
    {"logging_strategy": "epoch", "logging_steps": 0},
    {"logging_strategy": "no", "logging_steps": None, "save_strategy": "no", "save_steps": None},
    {"warmup_steps": 0.06, "max_steps": 100, "optim": "sgd"},
    {"use_cpu": True, "per_device_train_batch_size": 3, "per_device_eval_batch_size": 5, "ddp_timeout": 60},
]
DERIVED = [
    "n_gpu", "world_size", "process_index", "local_process_index", "train_batch_size", "eval_batch_size",
    "should_log", "should_save", "ddp_timeout_delta", "device",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: ",".join(settings) or "defaults")
def test_fields_and_data_are_as_in_transformers(theirs, settings):
    ours, reference = TrainingArguments(**settings), theirs(**settings)
    for name in SHARED:
        assert getattr(ours, name) == getattr(reference, name), name
        if name not in DELIBERATE_TYPES:
            assert type(getattr(ours, name)).__name__ == type(getattr(reference, name)).__name__, name
    for name in DERIVED if ours.use_cpu else []:
        assert getattr(ours, name) == getattr(reference, name), name
    for method in ("to_dict", "to_sanitized_dict"):
        data, theirs_as_data = getattr(ours, method)(), getattr(reference, method)()
        for name in theirs_as_data.keys() & data.keys():
            assert data[name] == theirs_as_data[name], name
            assert type(data[name]) is type(theirs_as_data[name]), name
        assert data.keys() - theirs_as_data.keys() == OURS_ONLY.keys() - OLD_NAMES


@pytest.mark.parametrize("kind", ["TrainingArguments", "Seq2SeqTrainingArguments"])
def test_the_signature_ends_in_removed_and_deprecated_arguments(kind):
    ours, theirs = (inspect.signature(getattr(each, kind)).parameters for each in (mps_trainer, transformers))
    positional = [name for name, each in ours.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert positional[0] == next(iter(theirs)) == "output_dir"
    assert sorted(positional) == sorted(theirs)
    added = OURS_ONLY.keys() - OLD_NAMES
    assert set(list(ours)[len(positional) :][: len(added)]) == added
    assert set(list(ours)[len(positional) + len(added) :]) == OLD_NAMES


@pytest.mark.parametrize("kind", ["TrainingArguments", "Seq2SeqTrainingArguments"])
def test_help_explains_each_argument(kind):
    text = inspect.getdoc(getattr(mps_trainer, kind))
    assert text.startswith(("All settings of a training run", "`TrainingArguments` for models"))
    assert text.index("\nArgs:\n") < text.index("\nRaises:\n")
    fields = dataclasses.fields(getattr(mps_trainer, kind))
    assert all(text.count(f"\n    {each.name} (") == 1 for each in fields)
    assert all(f"):\n        {each.metadata['help']}\n" in text for each in fields)
    assert "\n    learning_rate (float, default 5e-05):\n        Peak learning rate.\n" in text
    assert "\n    include_for_metrics (list[str], default []):\n" in text
    assert "<class" not in text


@pytest.mark.filterwarnings("ignore:`warmup_ratio:FutureWarning", "ignore:`logging_dir:FutureWarning")
@pytest.mark.parametrize("data", [TrainingArguments.to_dict, TrainingArguments.to_sanitized_dict, repr])
def test_old_arguments_are_shown_where_they_are_set(data):
    def shown(**settings) -> set[str]:
        text = data(TrainingArguments(**settings))
        return {name for name in OLD_NAMES if (f"\n{name}=" in text if isinstance(text, str) else name in text)}

    assert shown() == shown(warmup_ratio=0.1) == set()
    assert shown(overwrite_output_dir=True, logging_dir="logs") == {"overwrite_output_dir", "logging_dir"}


@pytest.mark.parametrize("warmup", [0, 0.001, 0.06, 0.5, 0.999, 1, 1.0, 10, 250.0])
@pytest.mark.parametrize("steps", [1, 7, 100, 12345])
def test_warmup_steps_are_as_in_transformers(theirs, warmup, steps):
    ours = TrainingArguments(warmup_steps=warmup).get_warmup_steps(steps)
    assert ours == theirs(warmup_steps=warmup).get_warmup_steps(steps)
    assert isinstance(ours, int)


RANKS = [(0, 0), (1, 1), (2, 0), (3, 1)]  # two machines with two processes each: rank, local rank
LEVELS = ["detail", "debug", "info", "warning", "error", "critical", "passive"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("each_node", [True, False])
@pytest.mark.parametrize(("rank", "local_rank"), RANKS)
def test_who_logs_and_who_saves_is_as_in_transformers(theirs, level, each_node, rank, local_rank):
    settings = {"log_on_each_node": each_node, "save_on_each_node": not each_node, "log_level": "error"}
    settings["log_level_replica" if rank % 2 else "log_level"] = level
    ours, reference = TrainingArguments(**settings), theirs(**settings)
    place = {"world_size": 4, "rank": rank, "local_rank": local_rank}
    ours.__dict__["decision"] = dataclasses.replace(TrainingArguments(use_cpu=True).decision, **place)
    reference.distributed_state = SimpleNamespace(num_processes=4, process_index=rank, local_process_index=local_rank)
    for name in ("world_size", "process_index", "local_process_index", "should_log", "should_save"):
        assert getattr(ours, name) == getattr(reference, name), name
    assert ours.get_process_log_level() == reference.get_process_log_level()
    assert ours.parallel_mode.value == "distributed"
