"""A saved optimizer and schedule are taken where they belong, whatever kind and release they are of."""

import copy
import dataclasses

import pytest
import torch
from torch.optim import lr_scheduler

from mps_trainer.checkpoints.compatibility import require_belonging, require_exported
from mps_trainer.optim.adamw import AdamW

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


def test_a_schedule_that_has_run_takes_the_state_of_one_that_has_not():
    def restarts():
        return lr_scheduler.CosineAnnealingWarmRestarts(stepped(torch.optim.SGD), 4)

    new, run = restarts(), restarts()
    run.step()
    assert run.T_cur > 0
    require_belonging(new.state_dict(), run)
    with pytest.raises(ValueError, match="T_i is 0"):
        require_belonging({**new.state_dict(), "T_i": 0}, run)


def test_a_momentum_of_another_shape_does_not_belong():
    saved = copy.deepcopy(stepped(AdamW).state_dict())
    saved["state"][0]["exp_avg_sq"] = torch.zeros(2, 3)
    with pytest.raises(
        ValueError, match=r"exp_avg_sq of parameter 0 has the shape \[2, 3\], and the parameter \[3, 2\]"
    ):
        require_belonging(saved, stepped(AdamW))


def test_the_state_of_a_part_that_is_neither_is_its_own_affair():
    require_belonging([1, 2], object())


DAMAGE = {
    "no table": (lambda saved: [], "it holds no optimizer's state"),
    "no state": (lambda saved: {**saved, "state": [1]}, "it holds no optimizer's state"),
    "no groups": (lambda saved: {**saved, "param_groups": None}, "it holds no groups of parameters"),
    "a table of groups": (lambda saved: {**saved, "param_groups": {}}, "it holds no groups of parameters"),
    "groups of numbers": (lambda saved: {**saved, "param_groups": [1, 2]}, "it holds no groups of parameters"),
    "one group": (lambda saved: {**saved, "param_groups": saved["param_groups"][:1]}, "it is of a model with another"),
    "a setting less": (lambda saved: without(saved, "eps"), "it is of another optimizer, which has no eps"),
    "a setting of words": (lambda saved: with_setting(saved, eps="x"), "of another optimizer, which has eps='x'"),
    "a setting that is none": (lambda saved: with_setting(saved, lr=float("nan")), "optimizer, which has lr=nan"),
    "other betas": (lambda saved: with_setting(saved, betas=(0.9,)), r"optimizer, which has betas=\(0\.9,\)"),
    "another parameter": (lambda saved: {**saved, "state": {9: {}}}, "a state of parameter 9, which this model"),
    "a state of words": (lambda saved: {**saved, "state": {0: "x"}}, "the state of parameter 0 is no table"),
    "no momentum": (lambda saved: {**saved, "state": {0: {"step": torch.ones(())}}}, "0 has no tensor exp_avg"),
    "two counters": (lambda saved: with_state(saved, step=torch.ones(2)), "step of parameter 0 is no number"),
}


def without(saved, name):
    groups = [{key: value for key, value in group.items() if key != name} for group in saved["param_groups"]]
    return {**saved, "param_groups": groups}


def with_setting(saved, **settings):
    return {**saved, "param_groups": [{**group, **settings} for group in saved["param_groups"]]}


def with_state(saved, **values):
    return {**saved, "state": {**saved["state"], 0: {**saved["state"][0], **values}}}


@pytest.mark.parametrize(("damage", "says"), DAMAGE.values(), ids=DAMAGE)
def test_what_is_no_state_of_this_optimizer_is_refused(damage, says):
    with pytest.raises(ValueError, match=says):
        require_belonging(damage(stepped(AdamW).state_dict()), stepped(AdamW))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda saved: [], "it holds no schedule's state"),
        (lambda saved: {**saved, "T_max": 0}, "T_max is 0"),
        (lambda saved: {**saved, "last_epoch": "x"}, "last_epoch is 'x'"),
        (lambda saved: {**saved, "base_lrs": [0.1]}, r"base_lrs is \[0\.1\]"),
        (lambda saved: {k: v for k, v in saved.items() if k != "_step_count"}, "it has no _step_count"),
    ],
)
def test_what_is_no_state_of_this_schedule_is_refused(change, says):
    schedule = SCHEDULES["cosine"](stepped(torch.optim.SGD))
    with pytest.raises(ValueError, match=says):
        require_belonging(change(schedule.state_dict()), schedule)


class WithAverage(torch.optim.SGD):
    """Keeps a tensor of its own beside torch's, as a subclass may."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["ema"] = parameter.detach().clone()


class Growing(torch.optim.SGD):
    """Has a setting that is infinite, as Prodigy has, and one above 1, as SAM has."""

    def __init__(self, groups):
        super().__init__(groups)
        for group in self.param_groups:
            group.update(growth_rate=float("inf"), rho=2.0)


@pytest.mark.parametrize("kind", [WithAverage, Growing])
def test_a_subclass_of_torchs_optimizers_may_keep_and_set_what_it_likes(kind):
    require_belonging(stepped(kind).state_dict(), stepped(kind))


@dataclasses.dataclass
class Warmup:
    steps: int = 100

    def __call__(self, step):
        return min(step / self.steps, 1.0)


def test_a_function_of_a_schedule_may_have_defaults_in_its_class():
    saved = lr_scheduler.LambdaLR(stepped(torch.optim.SGD), Warmup(5)).state_dict()
    assert saved["lr_lambdas"] == [{"steps": 5}] * 2  # one for each group
    require_belonging(saved, lr_scheduler.LambdaLR(stepped(torch.optim.SGD), Warmup(9)))


class Remembers:
    """A callback of the user's own."""

    def __init__(self):
        self.history, self.best = [], float("inf")

    def state(self):
        return {"args": {}, "attributes": {"history": self.history, "best": self.best}}


def test_a_callback_of_the_users_own_may_keep_what_grows():
    saved = {"args": {}, "attributes": {"history": [1, 2], "best": 0.5, "more": {"1": None}}}
    require_exported(saved, Remembers())
    with pytest.raises(ValueError, match="state is not a value"):
        require_exported({"attributes": {"state": 1}}, Remembers())
