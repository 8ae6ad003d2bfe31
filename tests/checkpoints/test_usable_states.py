"""A saved optimizer and schedule are taken where they belong, whatever kind and release they are of."""

import copy
import dataclasses
import re

import msgspec
import pytest
import torch
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import EarlyStoppingCallback, TrainerControl

from mps_trainer.checkpoints.usable_states import require_exported, require_usable
from mps_trainer.optim.adamw import AdamW
from tests.conftest import refusal

OPTIMIZERS = {
    "own AdamW": AdamW,
    "amsgrad": lambda groups: torch.optim.Adam(groups, amsgrad=True),
    "momentum": lambda groups: torch.optim.SGD(groups, momentum=0.9),
    "centered": lambda groups: torch.optim.RMSprop(groups, momentum=0.9, centered=True),
    "a subclass": lambda groups: Own(groups),
}
OF_TORCH = ["AdamW", "SGD", "Adagrad", "Adadelta", "NAdam", "RAdam", "Adamax", "ASGD", "Rprop", "Adafactor"]
OPTIMIZERS |= {name: getattr(torch.optim, name) for name in OF_TORCH}
SCHEDULES = {
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1)),
    "function": lambda optimizer: lr_scheduler.LambdaLR(optimizer, Warmup(9)),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 10),
    "plateau": lr_scheduler.ReduceLROnPlateau,
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=4),  # it ends after them
    "cyclic": lambda optimizer: lr_scheduler.CyclicLR(
        optimizer, 0.01, 0.1, 3, scale_fn=Logged(), cycle_momentum=False
    ),
    "sequential": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LambdaLR(optimizer, Logged()), lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=3)],
        [2],
    ),
}


class Logged:
    """A function of a schedule whose memory grows."""

    def __init__(self):
        self.steps = []

    def __call__(self, step):
        self.steps.append(step)
        return 0.5


class Own(torch.optim.SGD):
    """Keeps a tensor beside torch's, and has a setting that is infinite, as Prodigy, and one above 1, as SAM."""

    def __init__(self, groups):
        super().__init__(groups)
        for group in self.param_groups:
            group.update(growth_rate=float("inf"), rho=2.0)

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["ema"] = parameter.detach().clone()


@dataclasses.dataclass
class Warmup:
    steps: int = 100

    def __call__(self, step):
        return min(step / self.steps, 1.0)


def stepped(kind):
    """An optimizer after a step, with one parameter that never had a gradient."""
    layers = [torch.nn.Parameter(torch.ones(*sizes)) for sizes in ((3, 2), (4,), (1,))]
    optimizer = kind([{"params": layers[:1]}, {"params": layers[1:]}])
    for layer in layers[:2]:
        layer.grad = torch.ones_like(layer)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("kind", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_optimizer_takes_its_own_state_and_trying_it_calls_no_hook(kind, request):
    saved, optimizer = stepped(kind).state_dict(), stepped(kind)
    hook = register_optimizer_step_pre_hook(lambda *args: pytest.fail("a trial is no step"))
    request.addfinalizer(hook.remove)
    require_usable(saved, optimizer)


def test_what_a_run_has_set_itself_or_a_class_of_ones_own_keeps_is_taken():
    optimizer = stepped(torch.optim.SGD)
    for group in optimizer.param_groups:
        group["weight_decay"] = -0.1
    require_usable(optimizer.state_dict(), optimizer)
    require_usable([1, 2], object())


@pytest.mark.parametrize("kind", SCHEDULES.values(), ids=SCHEDULES)
def test_schedule_takes_its_own_state_and_trying_it_changes_no_rate(kind):
    schedule, fresh = kind(stepped(torch.optim.SGD)), kind(stepped(torch.optim.SGD))
    new = copy.deepcopy(fresh.state_dict())
    for step in range(5):
        if step:
            schedule.step(*([0.5] if isinstance(schedule, lr_scheduler.ReduceLROnPlateau) else []))
        saved = copy.deepcopy(schedule.state_dict())
        rates = [group["lr"] for group in schedule.optimizer.param_groups]
        require_usable(saved, schedule)
        require_usable(saved, fresh)
        require_usable(new, schedule)
        assert [group["lr"] for group in schedule.optimizer.param_groups] == rates
    fresh.load_state_dict(saved)


@pytest.mark.parametrize("kind", [AdamW, torch.optim.NAdam, torch.optim.Adagrad])
def test_parameter_without_dimensions_may_have_a_momentum_below_0(kind):
    def of(parameter):
        optimizer = kind([parameter], lr=0.1)
        parameter.grad = -torch.ones_like(parameter)
        optimizer.step()
        return optimizer

    saved = of(torch.nn.Parameter(torch.tensor(1.0)))
    require_usable(saved.state_dict(), of(torch.nn.Parameter(torch.tensor(1.0))))
    other = of(torch.nn.Parameter(torch.ones(3)))
    assert "shape" in refusal(require_usable, saved.state_dict(), other, kind=ValueError)


def test_entries_that_the_optimizer_needs_are_there_although_the_settings_are_alike():
    for other, missing in ((torch.optim.Adamax, "exp_avg_sq"), (torch.optim.Adagrad, "square_avg")):
        optimizer = stepped(AdamW if other is torch.optim.Adamax else torch.optim.Adadelta)
        saved = {**optimizer.state_dict(), "state": stepped(other).state_dict()["state"]}
        assert refusal(require_usable, saved, optimizer, kind=ValueError) == f"it has no {missing}"


def test_numbers_of_older_releases_and_those_of_a_run_that_diverged_are_taken():
    saved, optimizer = stepped(torch.optim.NAdam).state_dict(), stepped(torch.optim.NAdam)
    require_usable(with_state(saved, step=1.0, mu_product=1), optimizer)
    said = refusal(require_usable, with_state(saved, mu_product="x"), optimizer, kind=ValueError)
    assert "mu_product is 'x'" in said
    saved, optimizer = stepped(AdamW).state_dict(), stepped(AdamW)
    require_usable(with_state(saved, exp_avg=torch.full((3, 2), float("nan"))), optimizer)
    assert "exp_avg is 0.5" in refusal(require_usable, with_state(saved, exp_avg=0.5), optimizer, kind=ValueError)


def without(saved, name):
    groups = [{key: value for key, value in group.items() if key != name} for group in saved["param_groups"]]
    return {**saved, "param_groups": groups}


def with_setting(saved, **settings):
    return {**saved, "param_groups": [{**group, **settings} for group in saved["param_groups"]]}


def with_state(saved, **values):
    return {**saved, "state": {**saved["state"], 0: {**saved["state"][0], **values}}}


def test_optimizer_takes_a_rate_of_0_or_a_tensor_switches_of_another_release_and_no_or_other_momenta():
    changed = with_setting(without(stepped(AdamW).state_dict(), "fused"), lr=0.0, eps=0.0, new=0.5)
    require_usable({**changed, "hooks": {}}, stepped(AdamW))
    require_usable(with_setting(changed, lr=torch.tensor(0.1)), stepped(AdamW))
    require_usable(with_state(changed, exp_avg=torch.ones(3, 2).double()), stepped(AdamW))
    optimizer = stepped(OPTIMIZERS["momentum"])
    require_usable(with_state(optimizer.state_dict(), momentum_buffer=None), optimizer)


DAMAGE = {
    "no table": (lambda saved: [], "array"),
    "no state": (lambda saved: {**saved, "state": [1]}, "state"),
    "groups of numbers": (lambda saved: {**saved, "param_groups": [1, 2]}, "param_groups"),
    "one group": (lambda saved: {**saved, "param_groups": saved["param_groups"][:1]}, "different number of param"),
    "the same parameter": (lambda saved: with_setting(saved, params=[0, 0]), "different number of parameters"),
    "names of parameters": (lambda saved: with_setting(saved, params=["a"]), "params"),
    "a setting less": (lambda saved: without(saved, "eps"), "another optimizer, which has no eps"),
    "a setting of words": (lambda saved: with_setting(saved, eps="x"), "another optimizer, which has eps='x'"),
    "a switch of numbers": (lambda saved: with_setting(saved, amsgrad=torch.zeros(())), "has amsgrad=tensor"),
    "a setting that is nan": (lambda saved: with_setting(saved, lr=float("nan")), "lr=nan"),
    "other betas": (lambda saved: with_setting(saved, betas=(0.9,)), "betas"),
    "a rate below 0": (lambda saved: with_setting(saved, lr=-0.1), "learning rate"),
    "amsgrad without its state": (lambda saved: with_setting(saved, amsgrad=True), "max_exp_avg_sq"),
    "another way to step": (lambda saved: with_setting(saved, capturable=True), "capturable"),
    "a state of words": (lambda saved: {**saved, "state": {0: "x"}}, "state of a parameter is 'x'"),
    "no momentum": (lambda saved: {**saved, "state": {0: {"step": torch.ones(())}}}, "exp_avg"),
    "a momentum of another shape": (lambda saved: with_state(saved, exp_avg_sq=torch.zeros(2, 3)), r"\[2, 3\]"),
    "a momentum of a smaller shape": (lambda saved: with_state(saved, exp_avg=torch.zeros(2)), "shape"),
    "a sparse momentum": (lambda saved: with_state(saved, exp_avg=torch.ones(3, 2).to_sparse()), "dense"),
    "two counters": (lambda saved: with_state(saved, step=torch.ones(2)), "step is tensor"),
    "a counter that is nan": (lambda saved: with_state(saved, step=torch.tensor(float("nan"))), "step is tensor"),
    "a counter below 0": (lambda saved: with_state(saved, step=torch.tensor(-1.0)), "step is tensor"),
}


@pytest.mark.parametrize(("damage", "says"), DAMAGE.values(), ids=DAMAGE)
def test_optimizer_refuses_a_state_that_is_not_its_own(damage, says):
    saved = damage(stepped(AdamW).state_dict())
    assert re.search(says, refusal(require_usable, saved, stepped(AdamW), kind=Exception))


SCALER = {"scale": 1024.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 10, "_growth_tracker": 0}


@pytest.mark.parametrize(
    "saved",
    [[], {}, *({**SCALER, **change} for change in (
        {"scale": 0.0}, {"scale": float("inf")}, {"growth_interval": "x"}, {"_growth_tracker": 0.5},
    ))],
    ids=str,
)  # fmt: skip
def test_scaler_refuses_a_state_that_is_not_its_own(saved):
    scaler = torch.amp.GradScaler("cpu")
    require_usable(SCALER, scaler)
    require_usable(scaler.state_dict(), scaler)
    refusal(require_usable, saved, scaler, kind=msgspec.ValidationError)


def with_second(saved, **values):
    """Returns the state of a schedule of two with other values of the second."""
    first, second = saved["_schedulers"]
    return {**saved, "_schedulers": [first, {**second, **values}]}


BAD_SCHEDULES = [
    ("cosine", lambda saved: [], "it has no scheduler state"),
    ("cosine", lambda saved: {**saved, "T_max": 0}, "by zero"),
    ("cosine", lambda saved: {**saved, "last_epoch": "x"}, "last_epoch is 'x'"),
    ("cosine", lambda saved: {**saved, "base_lrs": [0.1]}, r"base_lrs is \[0\.1\]"),
    ("cosine", lambda saved: {k: v for k, v in saved.items() if k != "last_epoch"}, "it has no last_epoch"),
    ("cosine", lambda saved: {**saved, "last_epoch": 10**400}, "last_epoch is 1000"),
    ("cosine", lambda saved: {**saved, "_last_lr": torch.zeros(2)}, r"_last_lr is tensor"),
    ("cosine", lambda saved: {**saved, "optimizer": 1}, "'int' object"),
    ("cosine", lambda saved: {**saved, "state_dict": 1}, "state_dict is 1"),
    ("cosine", lambda saved: {**saved, 1: 1}, "1 is 1"),
    ("sequential", lambda saved: with_second(saved, total_steps="x"), "^total_steps is "),
    ("sequential", lambda saved: {**saved, "_schedulers": saved["_schedulers"][:1]}, "shorter|longer"),
    ("plateau", lambda saved: {**saved, "best": "x"}, "best"),
    ("plateau", lambda saved: {**saved, "mode": "sideways"}, "mode"),
    ("plateau", lambda saved: {**saved, "threshold_mode": 1}, "^threshold_mode is 1"),
    ("function", lambda saved: {**saved, "lr_lambdas": None}, "NoneType"),
    ("function", lambda saved: {**saved, "lr_lambdas": [{"steps": "x"}, None]}, "str"),
]


@pytest.mark.parametrize(("kind", "change", "says"), BAD_SCHEDULES)
def test_schedule_refuses_a_state_that_is_not_its_own(kind, change, says):
    schedule = SCHEDULES[kind](stepped(torch.optim.SGD))
    schedule.step(*([0.5] if kind == "plateau" else []))
    assert re.search(says, refusal(require_usable, change(schedule.state_dict()), schedule, kind=Exception))


def test_a_function_of_a_schedule_may_have_defaults_in_its_class_and_a_plateau_no_best_yet():
    schedule = SCHEDULES["function"](stepped(torch.optim.SGD))
    saved = schedule.state_dict()
    assert saved["lr_lambdas"] == [{"steps": 9}] * 2  # one for each group
    require_usable({**saved, "lr_lambdas": [{"steps": 5}, None]}, schedule)
    plateau = SCHEDULES["plateau"](stepped(torch.optim.SGD))
    require_usable({**plateau.state_dict(), "best": float("-inf")}, plateau)


class Remembers:
    def __init__(self):
        self.history, self.best = [], float("inf")

    def state(self):
        return {"args": {}, "attributes": {"history": self.history, "best": self.best}}


def test_a_callback_of_the_users_own_may_keep_what_grows():
    saved = {"args": {}, "attributes": {"history": [1, 2], "best": 0.5, "more": {"1": None}}}
    require_exported(saved, Remembers())
    damaged = {"attributes": {"state": 1}}
    assert "state is not a value" in refusal(require_exported, damaged, Remembers(), kind=ValueError)


@pytest.mark.parametrize(
    ("part", "saved", "says"),
    [
        (EarlyStoppingCallback(3), {"args": {"early_stopping_patience": "x"}}, "early_stopping_patience is 'x'"),
        (TrainerControl(), {"args": {"should_log": 1}}, "should_log is 1"),
        *(
            (EarlyStoppingCallback(3), {"attributes": {"early_stopping_patience_counter": value}}, "_counter is ")
            for value in ([1], torch.ones(1).to_sparse(), torch.ones(2))
        ),
        (EarlyStoppingCallback(3), {"attributes": {"__class__": 1}}, "__class__ is not a value"),
    ],
)
def test_a_callback_of_transformers_keeps_values_of_the_types_it_has(part, saved, says):
    require_exported(part.state(), part)
    require_exported({"args": {}, "attributes": {"early_stopping_patience_counter": 2}}, EarlyStoppingCallback(3))
    assert says in refusal(require_exported, saved, part, kind=ValueError)
