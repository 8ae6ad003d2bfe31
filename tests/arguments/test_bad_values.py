"""A value that cannot be right is a ValueError that names the field, the value and what is accepted."""

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from mps_trainer import TrainingArguments
from tests.conftest import refusal

WORKERS = "left out unless dataloader_num_workers is above 0"
STEPS_OR_FRACTION = "a whole number of steps, or below 1 for a fraction of all steps"
PATH = "must be a path"

# field, value, a piece of what is accepted
SINGLE = [
    # below the range, above it, or outside every range
    ("max_steps", 0, "at least 1"),
    ("adam_beta1", 1.0, "at least 0 and below 1"),
    ("label_smoothing_factor", 1.1, "between 0 and 1"),
    ("ddp_timeout", 10**15, "between 1 and 1000000000"),
    ("seed", 2**32, "between 0 and 4294967295"),
    ("logging_steps", 0, "above 0 with logging_strategy='steps'"),
    ("save_steps", 0, "above 0 with save_strategy='steps'"),
    ("save_steps", None, "above 0 with save_strategy='steps'"),
    # These are no numbers of the kind.
    ("torch_empty_cache_steps", 1.0, "a whole number, not written as a fraction"),
    ("logging_steps", 2.5, STEPS_OR_FRACTION),
    ("learning_rate", math.nan, "a finite number"),
    ("learning_rate", "fast", "a finite number"),
    ("learning_rate", True, "a finite number"),
    ("learning_rate", 10**400, "a finite number"),
    ("seed", 42.5, "a whole number"),
    # neither true nor false
    ("do_train", 2, "true or false"),
    ("do_train", "maybe", "true or false"),
    # These are none of the words.
    ("eval_strategy", "sometimes", "one of no, steps, epoch"),
    ("evaluation_strategy", "sometimes", "one of no, steps, epoch"),
    ("log_level", "loud", "one of detail, debug"),
    ("dataloader_multiprocessing_context", "thread", "one of fork, spawn, forkserver"),
    ("ddp_backend", "smoke_signals", "one of ccl, gloo, mlx, mpi, nccl, xccl"),
    ("accelerator", "tpu", "one of auto, mps, cuda, xpu, cpu, gpu"),
    ("accelerator", None, "must be text"),
    ("devices", "two", "Accepted are 'auto', a number"),
    ("devices", [-1], "Accepted are 'auto', a number"),
    # text, paths, lists and JSON
    ("metric_for_best_model", 1, "must be text"),
    ("output_dir", "", PATH),
    ("output_dir", 5, PATH),
    ("output_dir", b"run", PATH),
    ("output_dir", "a\0b", PATH),
    ("label_names", {"labels": 1}, "a list of names"),
    ("report_to", "", "a list of names"),
    ("lr_scheduler_kwargs", "num_cycles=2", "a JSON object"),
    ("lr_scheduler_kwargs", "[1]", "a dictionary"),
    ("lr_scheduler_kwargs", {1: 2}, "a dictionary whose keys are text"),
    # right only together with something else
    ("dataloader_prefetch_factor", 2, WORKERS),
    ("dataloader_persistent_workers", True, WORKERS),
    ("lr_scheduler_type", "reduce_lr_on_plateau", "used with an eval_strategy other than 'no'"),
    ("save_strategy", "best", "used with an eval_strategy other than 'no'"),
]

BEST = {"load_best_model_at_end": True}
EVERY = "save_steps must be a multiple of eval_steps"
# settings, everything the message has to say
TOGETHER = [
    ({"fp16": True, "bf16": True}, ["fp16=True", "bf16=True", "set one of them"]),
    (BEST, ["eval_strategy='no'", "save_strategy='steps'", "steps or epoch"]),
    (BEST | {"eval_strategy": "epoch"}, ["eval_strategy='epoch'", "save_strategy='steps'", "the same value"]),
    (BEST | {"save_strategy": "no"}, ["eval_strategy='no'", "save_strategy='no'"]),
    (BEST | {"eval_strategy": "steps", "eval_steps": 300}, ["save_steps=500", "eval_steps=300", EVERY]),
    (BEST | {"eval_strategy": "steps", "eval_steps": 0.1}, ["save_steps=500", "eval_steps=0.1", EVERY]),
    (BEST | {"eval_strategy": "steps", "eval_steps": 0.2, "save_steps": 0.3}, ["save_steps=0.3", "eval_steps=0.2"]),
    ({"eval_strategy": "steps", "logging_strategy": "no", "logging_steps": 0}, ["eval_steps=0", "above 0"]),
    ({"evaluation_strategy": "epoch", "eval_strategy": "steps"}, ["evaluation_strategy", "Leave out"]),
    ({"per_gpu_train_batch_size": 4, "per_device_train_batch_size": 16}, ["per_gpu_train_batch_size", "16", "=4"]),
    ({"use_mps_device": True, "accelerator": "cuda"}, ["use_mps_device", "accelerator='mps'", "'cuda'", "Leave out"]),
    ({"warmup_ratio": 0.1, "warmup_steps": -1}, ["warmup_steps=-1", "at least 0"]),
    ({"warmup_ratio": 1.5}, ["warmup_ratio=1.5", "between 0 and 1"]),
    ({"warmup_ratio": -0.1}, ["warmup_ratio=-0.1", "between 0 and 1"]),
    ({"per_gpu_eval_batch_size": 0}, ["per_device_eval_batch_size=0", "at least 1"]),
]


@pytest.mark.parametrize(("name", "value", "accepted"), SINGLE)
def test_a_bad_value_is_refused_by_name(name, value, accepted):
    said = refusal(TrainingArguments, **{name: value})
    assert re.search(r"is not accepted|not understood", said)
    assert said.startswith(f"{name}={value!r} ")
    assert accepted in said


NOT_NEGATIVE = [
    "num_train_epochs", "learning_rate", "warmup_steps", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon",
    "max_grad_norm", "label_smoothing_factor", "neftune_noise_alpha", "dataloader_num_workers", "logging_steps",
    "eval_steps", "eval_delay", "save_steps", "save_total_limit", "seed", "data_seed", "memory_fraction",
]  # fmt: skip
POSITIVE = [
    "per_device_train_batch_size", "per_device_eval_batch_size", "num_length_buckets", "gradient_accumulation_steps",
    "dataloader_prefetch_factor", "eval_accumulation_steps", "torch_empty_cache_steps", "ddp_bucket_cap_mb",
    "ddp_timeout",
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "below"), [*((name, -1) for name in NOT_NEGATIVE), *((name, 0) for name in POSITIVE)]
)
def test_a_number_below_the_range_is_refused(name, below):
    says = rf"^{name}={below} is not accepted: it must be (at least|between) {below + 1}"
    assert re.search(says, refusal(TrainingArguments, **{name: below}))


@pytest.mark.parametrize("name", ["lr_scheduler_kwargs", "fsdp_config", "accelerator_config", "run_name", "devices"])
def test_a_value_that_a_few_aliases_of_yaml_make_huge_is_refused(name):
    value = {"k": 1}
    for _ in range(40):
        value = {"k": [value, value]}
    said = refusal(TrainingArguments, **{name: value})
    assert len(said.partition(" is not accepted: it must be a value of at most")[0]) < 1000
    assert f"{name[-8:]}=" in said


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("settings", "said"), TOGETHER)
def test_a_bad_combination_is_refused_with_both_names(settings, said):
    message = refusal(TrainingArguments, **settings)
    assert [piece for piece in said if piece not in message] == []


@pytest.mark.parametrize("below", ["", "run", "run/seed-1"])
def test_a_file_where_the_output_folder_should_be_is_refused(tmp_path, below):
    (tmp_path / "notes.txt").write_text("mine")
    said = refusal(TrainingArguments, output_dir=str(tmp_path / "notes.txt" / below))
    assert "must be a folder, " in said
    assert "notes.txt is a file" in said
    assert (tmp_path / "notes.txt").read_text() == "mine"


# field, value, what it becomes: each has one reading only
ACCEPTED = [
    ("learning_rate", "2e-5", 2e-5),  # YAML has it as text, for want of a dot
    ("max_steps", 100.0, 100),
    ("max_steps", "1e3", 1000),
    ("data_seed", str(2**53 + 1), 2**53 + 1),  # exact, though no float is
    ("data_seed", np.int64(2**53 + 1), 2**53 + 1),
    ("eval_strategy", False, "no"),  # YAML's bare no
    ("do_train", 1, True),
    ("do_train", np.False_, False),
    ("logging_steps", 10.0, 10),
    ("logging_steps", "0.1", 0.1),
    ("output_dir", Path("run"), "run"),
    ("output_dir", None, "trainer_output"),
    ("resume_from_checkpoint", Path("run/checkpoint-5"), "run/checkpoint-5"),
    ("activation_checkpointing", None, False),
    ("lr_scheduler_kwargs", '{"num_cycles": 2}', {"num_cycles": 2}),
    ("label_names", "labels", ["labels"]),
    ("label_names", ("start", "end"), ["start", "end"]),
    ("report_to", None, []),
    ("report_to", "none", []),
    ("devices", [0], [0]),
    ("devices", "0,1", "0,1"),
    ("devices", None, None),
]


@pytest.mark.parametrize(("name", "value", "becomes"), ACCEPTED)
def test_a_value_with_one_reading_is_read(name, value, becomes):
    held = getattr(TrainingArguments(**{name: value}), name)
    assert held == becomes
    assert isinstance(held, type(becomes))


def test_workers_are_bounded_by_the_processors(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 32)
    assert TrainingArguments(dataloader_num_workers=128).dataloader_num_workers == 128
    said = refusal(TrainingArguments, dataloader_num_workers=129)
    assert "at most 128 on this machine" in said
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert TrainingArguments(dataloader_num_workers=64).dataloader_num_workers == 64


def test_saving_less_often_than_evaluating_is_fine_when_it_is_a_multiple():
    for evaluate, save in ((100, 300), (0.1, 0.3), (0.05, 0.35), (1, 7), (1e-9, 0.5)):
        settings = {"eval_strategy": "steps", "eval_steps": evaluate, "save_steps": save}
        assert TrainingArguments(**BEST, **settings).metric_for_best_model == "loss"


def test_a_subclass_field_is_left_as_it_is():
    @dataclass
    class MyArguments(TrainingArguments):
        temperature: float = 1.0

    assert MyArguments(temperature="warm").temperature == "warm"
