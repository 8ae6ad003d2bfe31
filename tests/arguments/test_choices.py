"""The enums stand in for transformers' own, in both directions."""

import pickle

import pytest
from transformers import debug_utils, trainer_utils
from transformers import training_args as their_module

from mps_trainer import TrainingArguments
from mps_trainer.arguments import choices
from tests import run_python

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


def test_the_enums_of_transformers_are_accepted_as_values():
    given = {
        "eval_strategy": trainer_utils.IntervalStrategy.EPOCH,
        "save_strategy": trainer_utils.SaveStrategy.BEST,
        "lr_scheduler_type": trainer_utils.SchedulerType.COSINE,
        "optim": their_module.OptimizerNames.SGD,
    }
    args = TrainingArguments(**given)
    assert all(getattr(args, name) is value for name, value in given.items())


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
    done = run_python("-c", LATE, cwd=tmp_path)
    assert done.stdout.split() == ["True", "True"], done.stderr
