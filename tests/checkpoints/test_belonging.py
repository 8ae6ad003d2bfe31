"""A saved optimizer and schedule are taken where they belong, whatever kind and release they are of."""

import copy

import pytest
import torch
from torch.optim import lr_scheduler

from mps_trainer.checkpoints.belonging import require_belonging
from mps_trainer.training.adamw import AdamW

OPTIMIZERS = {
    "own AdamW": AdamW,
    "AdamW": torch.optim.AdamW,
    "amsgrad": lambda groups: torch.optim.Adam(groups, amsgrad=True),
    "SGD": lambda groups: torch.optim.SGD(groups, momentum=0.9),
    "SGD without momentum": torch.optim.SGD,
    "RMSprop": lambda groups: torch.optim.RMSprop(groups, momentum=0.9, centered=True),
    "Adagrad": torch.optim.Adagrad,
    "Adadelta": torch.optim.Adadelta,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "Adamax": torch.optim.Adamax,
    "ASGD": torch.optim.ASGD,
    "Rprop": torch.optim.Rprop,
    "Adafactor": torch.optim.Adafactor,
}
SCHEDULES = {
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1)),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 10),
    "plateau": lr_scheduler.ReduceLROnPlateau,
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9),
}


def stepped(kind):
    """An optimizer after a step, with one parameter that never had a gradient."""
    layers = [
        torch.nn.Parameter(torch.ones(3, 2)),
        torch.nn.Parameter(torch.ones(4)),
        torch.nn.Parameter(torch.ones(1)),
    ]
    optimizer = kind([{"params": layers[:1]}, {"params": layers[1:]}])
    for layer in layers[:2]:
        layer.grad = torch.ones_like(layer)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("kind", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_an_optimizers_own_state_belongs(kind):
    require_belonging(stepped(kind).state_dict(), stepped(kind))


def test_a_state_from_before_there_was_a_switch_belongs():
    saved = copy.deepcopy(stepped(torch.optim.AdamW).state_dict())
    for group in saved["param_groups"]:
        del group["decoupled_weight_decay"], group["fused"]
    require_belonging(saved, stepped(AdamW))


def test_a_state_of_another_release_with_more_in_it_belongs():
    saved = copy.deepcopy(stepped(AdamW).state_dict())
    saved["hooks"] = {}
    for group in saved["param_groups"]:
        group["brand_new"] = 0.5
    require_belonging(saved, stepped(AdamW))


@pytest.mark.parametrize("kind", SCHEDULES.values(), ids=SCHEDULES)
def test_a_schedules_own_state_belongs(kind):
    schedule = kind(stepped(torch.optim.SGD))
    require_belonging(schedule.state_dict(), schedule)


def test_a_momentum_of_another_shape_does_not_belong():
    saved = copy.deepcopy(stepped(AdamW).state_dict())
    saved["state"][0]["exp_avg_sq"] = torch.zeros(2, 3)
    with pytest.raises(
        ValueError, match=r"exp_avg_sq of parameter 0 has the shape \[2, 3\], and the parameter \[3, 2\]"
    ):
        require_belonging(saved, stepped(AdamW))


def test_the_state_of_a_part_that_is_neither_is_its_own_affair():
    require_belonging([1, 2], object())
