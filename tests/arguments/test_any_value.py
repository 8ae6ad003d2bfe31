"""Whatever is given for a field, the arguments either exist or are refused with a ValueError; no file is made."""

import dataclasses
import enum
import json
import math
import os
import typing
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mps_trainer import TrainingArguments
from mps_trainer.arguments.fields import declarations

NAMES = [field.name for field in dataclasses.fields(TrainingArguments)]
CHOICES = {
    name: kind
    for name, hint in typing.get_type_hints(TrainingArguments).items()
    for kind in typing.get_args(hint)
    if isinstance(kind, enum.EnumMeta)
}
KNOWN_WORDS = sorted(
    {word for field in declarations(TrainingArguments).values() for word in field.words or ()}
    | {choice.value for kind in CHOICES.values() for choice in kind}
)

numbers = (
    st.integers() | st.floats() | st.integers(-2, 10) | st.floats(0, 1) | st.sampled_from([10**400, -0.0, 5e-324])
)
text = (
    st.text(max_size=20)
    | st.sampled_from(KNOWN_WORDS)
    | numbers.map(repr)
    | st.sampled_from(["", "~", "~\0", "{}", "[" * 9999])
)
plain = st.none() | st.booleans() | numbers | text
odd = st.binary(max_size=5) | st.complex_numbers() | st.builds(Path, st.just("run")) | st.just(object()) | st.just(int)
anything = st.recursive(
    plain | odd,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(text | st.integers(), inner, max_size=3)
    ),
    max_leaves=5,
)

thorough = settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield tmp_path
    assert os.listdir(tmp_path) == []


def exists_or_is_refused(**given):
    """Builds the arguments; what exists has to work as data too, and make an equal copy."""
    try:
        args = TrainingArguments(**given)
    except ValueError:
        return
    assert dataclasses.replace(args) == args
    assert TrainingArguments(**args.to_dict()) == dataclasses.replace(args, hub_token=None)  # tokens stay here
    assert json.loads(args.to_json_string()).keys() == args.to_dict().keys()
    assert repr(args)
    assert args.ddp_timeout_delta.total_seconds() > 0
    assert args.get_warmup_steps(100) >= 0
    assert all(type(value) in (bool, int, float, str) for value in args.to_sanitized_dict().values())


@pytest.mark.parametrize("part", range(4))  # for four processes
@settings(thorough, max_examples=600)
@given(data=st.data(), value=anything)
def test_any_value_of_any_field(part, data, value):
    exists_or_is_refused(**{data.draw(st.sampled_from(NAMES[part::4])): value})


STEPS = ["logging_steps", "eval_steps", "save_steps", "warmup_steps", "eval_delay", "max_steps"]
FLAGS = ["load_best_model_at_end", "fp16", "bf16", "use_cpu", "gradient_checkpointing", "activation_checkpointing"]
positive = (
    st.integers(0, 1000) | st.floats(0, 1000) | st.floats(0, 1, exclude_min=True) | st.just(math.nextafter(0, 1))
)


@thorough
@given(
    strategies=st.fixed_dictionaries(
        {}, optional={name: st.sampled_from(list(kind)) for name, kind in CHOICES.items()}
    ),
    steps=st.fixed_dictionaries({}, optional=dict.fromkeys(STEPS, positive)),
    flags=st.fixed_dictionaries({}, optional=dict.fromkeys(FLAGS, st.booleans())),
)
@example({"eval_strategy": "steps"}, {"eval_steps": 1e-9, "save_steps": 0.5}, {"load_best_model_at_end": True})
@example({"eval_strategy": "steps"}, {"eval_steps": 1, "save_steps": 1e308}, {"load_best_model_at_end": True})
def test_any_combination_of_strategies_and_steps(strategies, steps, flags):
    exists_or_is_refused(**strategies, **steps, **flags)
