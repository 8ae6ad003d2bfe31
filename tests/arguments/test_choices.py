"""The enums stand in for transformers' own, in both directions."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import debug_utils, trainer_utils
from transformers import training_args as their_module
from transformers.trainer_callback import DefaultFlowCallback, TrainerControl, TrainerState

from mps_trainer import TrainingArguments
from mps_trainer.arguments import choices

PAIRS = [
    (choices.IntervalStrategy, trainer_utils.IntervalStrategy),
    (choices.SaveStrategy, trainer_utils.SaveStrategy),
    (choices.SchedulerType, trainer_utils.SchedulerType),
    (choices.OptimizerNames, their_module.OptimizerNames),
    (choices.HubStrategy, trainer_utils.HubStrategy),
    (choices.DebugOption, debug_utils.DebugOption),
]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda kind: kind.__name__)
def test_members_equal_those_of_transformers(ours, theirs):
    assert [member.name for member in ours] == [member.name for member in theirs]
    for member in ours:
        other = theirs[member.name]
        assert member == other == member.value
        assert hash(member) == hash(other) == hash(member.value)
        assert theirs(member.value) is other
        assert ours(other.value) is member
        assert str(member) == f"{member}" == member.value
        assert pickle.loads(pickle.dumps(member)) is member
    assert len(ours) == len(theirs)


def test_the_enums_of_transformers_are_accepted_as_values():
    args = TrainingArguments(
        eval_strategy=trainer_utils.IntervalStrategy.EPOCH,
        save_strategy=trainer_utils.SaveStrategy.BEST,
        lr_scheduler_type=trainer_utils.SchedulerType.COSINE,
        optim=their_module.OptimizerNames.SGD,
    )
    assert (args.eval_strategy, args.save_strategy, args.lr_scheduler_type, args.optim) == (
        choices.IntervalStrategy.EPOCH,
        choices.SaveStrategy.BEST,
        choices.SchedulerType.COSINE,
        choices.OptimizerNames.SGD,
    )
    assert type(args.optim) is their_module.OptimizerNames
    assert type(args.eval_strategy) is trainer_utils.IntervalStrategy


@pytest.mark.parametrize(
    ("settings", "step", "expected"),
    [
        ({"logging_steps": 2}, 2, (True, False, False)),
        ({"logging_steps": 2}, 3, (False, False, False)),
        ({"logging_first_step": True}, 1, (True, False, False)),
        ({"eval_strategy": "steps", "eval_steps": 3}, 3, (False, True, False)),
        ({"eval_strategy": "steps", "eval_steps": 3, "eval_delay": 4}, 3, (False, False, False)),
        ({"save_steps": 5}, 5, (False, False, True)),
        ({"save_strategy": "no", "save_steps": 5}, 5, (False, False, False)),
        ({"save_strategy": "epoch", "save_steps": 5}, 5, (False, False, False)),
    ],
)
def test_the_flow_callback_of_transformers_reads_the_strategies_at_each_step(settings, step, expected):
    args = TrainingArguments(**settings)
    state = TrainerState(global_step=step, max_steps=100)
    state.logging_steps, state.eval_steps, state.save_steps = args.logging_steps, args.eval_steps, args.save_steps
    control = DefaultFlowCallback().on_step_end(args, state, TrainerControl())
    assert (control.should_log, control.should_evaluate, control.should_save) == expected


def test_the_flow_callback_of_transformers_reads_the_strategies_at_each_epoch():
    args = TrainingArguments(logging_strategy="epoch", eval_strategy="epoch", save_strategy="epoch")
    control = DefaultFlowCallback().on_epoch_end(args, TrainerState(epoch=1), TrainerControl())
    assert (control.should_log, control.should_evaluate, control.should_save) == (True, True, True)
    control = DefaultFlowCallback().on_epoch_end(TrainingArguments(), TrainerState(epoch=1), TrainerControl())
    assert (control.should_log, control.should_evaluate, control.should_save) == (False, False, False)


LATE = """
import sys
from mps_trainer import TrainingArguments
args = TrainingArguments("run", use_cpu=True, optim="sgd", eval_strategy="no")
assert "transformers.training_args" not in sys.modules
import torch
from mps_trainer import Trainer
Trainer(torch.nn.Linear(1, 1), args)
from transformers import IntervalStrategy, TrainingArguments
from transformers.training_args import OptimizerNames
print(type(args.optim) is OptimizerNames, type(args.eval_strategy) is IntervalStrategy)
"""


@pytest.mark.integration
def test_members_are_those_of_transformers_once_there_is_a_trainer(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", LATE], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "True"], done.stderr
