"""Optimizers, parameter groups and schedules: transformers' Trainer and this one, side by side on the CPU."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn
from transformers.trainer_utils import SchedulerType
from transformers.training_args import OptimizerNames

import mps_trainer
from mps_trainer import MisconfigurationException
from mps_trainer.arguments import choices
from tests.conftest import on_device
from tests.dropin.pairs import Net, assert_same_weights, both, logged, make

PACKAGES = {  # of an optimizer's name, by how it begins or ends
    "bitsandbytes": ("adamw_bnb", "adamw_8bit", "paged", "lion", "ademamix", "rmsprop_bnb"),
    "torchao": ("adamw_torch_4bit", "adamw_torch_8bit"),
    "galore_torch": ("galore",),
    "apollo_torch": ("apollo",),
    "schedulefree": ("schedule_free",),
    "optimi": ("stable_adamw",),
    "grokadamw": ("grokadamw",),
    "torchdistx": ("adamw_anyprecision",),
}
LAYERWISE = {name.value for name in OptimizerNames if name.value.endswith("layerwise")}
REFUSED = {"adamw_torch_xla", "adamw_torch_npu_fused", "lomo", "adalomo"}
ALONE = ["adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop"]
OPTIM_ARGS = {
    "sgd": "momentum=0.9, nesterov=true, weight_decay=0.01",
    "adagrad": "lr_decay=0.1,eps=1e-6",
    "rmsprop": "momentum=0.5,alpha=0.9,centered=true",
    "galore": "rank=2,update_proj_gap=2,scale=0.5",
    "apollo": "rank=2,update_proj_gap=2,scale=2.0,proj=svd",
    "ademamix": "alpha=4.0,beta3=0.999,t_alpha=3",
}


def package_of(name: str) -> str | None:
    return next((package for package, begins in PACKAGES.items() if name.startswith(begins)), None)


def optim_settings(name: str) -> dict:
    settings: dict = {"optim": name}
    for begin, text in OPTIM_ARGS.items():
        if begin in name and not (begin in ("sgd", "rmsprop") and name != begin):
            settings["optim_args"] = text
    if name.startswith(("galore", "apollo")):
        settings["optim_target_modules"] = ["attention"]
    if name.startswith("schedule_free"):
        settings["lr_scheduler_type"] = "constant"
    return settings


def plain(settings: dict) -> dict:
    """Settings without what is made of a run's own parameters."""
    return {name: value for name, value in settings.items() if name not in ("params", "optimizer_dict", "state")}


def assert_same_groups(ours, theirs) -> None:
    theirs = getattr(theirs, "optimizer", theirs)  # Accelerate wraps it
    assert isinstance(ours, type(theirs))
    assert type(ours).__name__ == type(theirs).__name__
    assert len(ours.param_groups) == len(theirs.param_groups)
    for mine, other in zip(ours.param_groups, theirs.param_groups, strict=True):
        assert mine.keys() == other.keys()
        assert [p.shape for p in mine["params"]] == [p.shape for p in other["params"]]
        assert plain(mine) == plain(other)


def test_every_optimizer_of_transformers_has_its_name_here():
    assert {o.name: o.value for o in OptimizerNames}.items() <= {
        o.name: o.value for o in choices.OptimizerNames
    }.items()
    assert {s.name: s.value for s in SchedulerType} == {s.name: s.value for s in choices.SchedulerType}


@pytest.mark.parametrize("name", [name.value for name in OptimizerNames if name.value not in REFUSED | LAYERWISE])
def test_an_optimizer_has_the_class_settings_and_effect_of_transformers(name, tmp_path):
    package = package_of(name)
    if package is None:
        assert name in ALONE
    elif importlib.util.find_spec(package) is None:
        with pytest.raises(MisconfigurationException, match=f"optim='{name}'.*nstall"):
            make(mps_trainer, tmp_path, **optim_settings(name)).create_optimizer()
        return
    ours, theirs = both(tmp_path, **optim_settings(name))
    kind, settings = mps_trainer.Trainer.get_optimizer_cls_and_kwargs(ours.args, Net())
    their_kind, their_settings = transformers.Trainer.get_optimizer_cls_and_kwargs(theirs.args, Net())
    assert kind is their_kind
    assert plain(settings) == plain(their_settings)
    if name == "galore_adamw_8bit":
        return  # its step needs CUDA
    ours.train()
    theirs.train()
    assert_same_groups(ours.optimizer, theirs.optimizer)
    assert logged(ours, "loss") == pytest.approx(logged(theirs, "loss"), abs=1e-6)
    assert_same_weights(ours, theirs)
    start = make(mps_trainer, tmp_path).model.head.weight
    assert not torch.equal(ours.model.head.weight, start)  # it did train


@pytest.mark.parametrize("name", ["galore_adamw_layerwise", "apollo_adamw_layerwise"])
def test_a_layerwise_optimizer_does_what_the_one_over_all_layers_does(name, tmp_path):
    # transformers' own cannot be compared with: its schedule for them fails with torch 2.13
    package = package_of(name)
    if importlib.util.find_spec(package) is None:
        with pytest.raises(MisconfigurationException, match="nstall"):
            make(mps_trainer, tmp_path, **optim_settings(name)).create_optimizer()
        return
    layers, whole = (
        make(mps_trainer, tmp_path, max_grad_norm=0.0, **optim_settings(each))
        for each in (name, name.removesuffix("_layerwise"))
    )
    layers.train()
    whole.train()
    assert_same_weights(layers, whole)
    assert logged(layers, "learning_rate")[-1] < logged(layers, "learning_rate")[0] == 1e-2
    with pytest.raises(MisconfigurationException, match="accumulation"):
        make(mps_trainer, tmp_path, gradient_accumulation_steps=2, **optim_settings(name)).create_optimizer()


def test_settings_that_an_optimizer_refuses_are_the_error_of_transformers(tmp_path):
    pytest.importorskip("galore_torch", reason="GaLore's own settings are looked at after its package")
    ours, theirs = both(tmp_path, **optim_settings("galore_adafactor_layerwise"))
    with pytest.raises(ValueError, match="relative_step") as their_error:
        theirs.create_optimizer()
    with pytest.raises(MisconfigurationException, match="relative_step") as error:
        ours.create_optimizer()
    assert str(their_error.value) in str(error.value)


@pytest.mark.parametrize("name", ALONE)
def test_an_optimizer_does_on_mps_what_it_does_on_the_cpu(name, tmp_path):
    on_cpu = make(mps_trainer, tmp_path, **optim_settings(name))
    on_cpu.train()
    with on_device("mps", same_draws_as_cpu=True):
        on_mps = make(mps_trainer, tmp_path, use_cpu=False, **optim_settings(name))
        on_mps.train()
        assert on_mps.model.head.weight.device.type == "mps"
        assert logged(on_mps, "loss") == pytest.approx(logged(on_cpu, "loss"), abs=1e-5)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_an_optimizer_that_is_not_supported_is_refused(name, tmp_path):
    with pytest.raises(MisconfigurationException, match=f"optim='{name}' is not supported: .* Use "):
        mps_trainer.TrainingArguments(str(tmp_path), optim=name)


@pytest.mark.parametrize("name", ["galore_adamw", "adamw_8bit", "schedule_free_adamw", "grokadamw", "stable_adamw"])
def test_a_missing_package_is_the_error_of_transformers(name, tmp_path, monkeypatch):
    check = {"galore": "galore_torch", "adamw": "bitsandbytes", "schedule": "schedulefree", "stable": "torch_optimi"}
    package = check.get(name.split("_")[0], "grokadamw")
    monkeypatch.setattr(f"transformers.trainer_optimizer.is_{package}_available", lambda *a: False)
    ours, theirs = both(tmp_path, **optim_settings(name))
    with pytest.raises((ImportError, ValueError)) as their_error:
        theirs.create_optimizer()
    with pytest.raises(type(their_error.value), match=f"optim='{name}'.*nstall"):
        ours.create_optimizer()
    with pytest.raises(ValueError, match=f"optim='{name}'"):
        ours.create_optimizer()


@pytest.mark.parametrize("given", ["momentum", "momentum=", "=0.9", "a=b=c", "momentum=fast"])
def test_optim_args_that_cannot_be_read_are_refused(given, tmp_path):
    with pytest.raises(MisconfigurationException, match=rf"optim_args='{given}' cannot be"):
        make(mps_trainer, tmp_path, optim="sgd", optim_args=given).create_optimizer()


def test_optim_args_that_the_optimizer_does_not_have_are_named(tmp_path, caplog):
    make(mps_trainer, tmp_path, optim="sgd", optim_args="momentum=0.9,beta=1").create_optimizer()
    make(mps_trainer, tmp_path, optim="adamw_torch", optim_args="fused=1").create_optimizer()
    assert [record.message for record in caplog.records if "optim_args" in record.message] == [
        "optim_args: optim='sgd' has no beta here, which is ignored.",
        "optim_args: optim='adamw_torch' has no fused here, which is ignored.",
    ]


def test_galore_without_target_modules_is_refused(tmp_path):
    pytest.importorskip("galore_torch", reason="GaLore's own settings are looked at after its package")
    with pytest.raises(MisconfigurationException, match="optim_target_modules"):
        make(mps_trainer, tmp_path, optim="galore_adamw").create_optimizer()


def test_releases_of_transformers_without_the_module_of_optimizers_do(tmp_path, monkeypatch):
    assert transformers.Trainer  # of this release, which imports that module, is loaded before it is gone
    monkeypatch.setitem(sys.modules, "transformers.trainer_optimizer", None)
    monkeypatch.delattr(transformers, "trainer_optimizer", raising=False)
    trainer = make(mps_trainer, tmp_path, **optim_settings("sgd"))
    assert trainer.create_optimizer().defaults["momentum"] == 0.9


@pytest.mark.parametrize(("device", "fused"), [("mps", True), ("cuda", True), ("cpu", True), ("meta", None)])
def test_fused_kernels_are_asked_for_where_torch_has_them(device, fused):
    args = SimpleNamespace(optim="adamw_torch_fused", optim_args=None, device=torch.device(device))
    rates = {"learning_rate": 1e-3, "adam_beta1": 0.9, "adam_beta2": 0.99, "adam_epsilon": 1e-8}
    vars(args).update(rates)
    kind, settings = mps_trainer.Trainer.get_optimizer_cls_and_kwargs(args)
    assert kind is torch.optim.AdamW
    assert settings.get("fused") is fused
    args.optim = "adamw_torch"
    assert "fused" not in mps_trainer.Trainer.get_optimizer_cls_and_kwargs(args)[1]


# Parameter groups


def test_weight_decay_is_for_the_parameters_that_transformers_has_it_for(tmp_path):
    ours, theirs = both(tmp_path)
    names = ours.get_decay_parameter_names(ours.model)
    assert names == theirs.get_decay_parameter_names(theirs.model)
    assert {"bn.weight", "rms.weight"} < set(names)
    assert not {"norm.weight", "final_norm.weight", "ln.weight"} & set(names)
    assert_same_groups(ours.create_optimizer(), theirs.create_optimizer())


def own_parts(package) -> type:
    class Own(package.Trainer):
        def get_decay_parameter_names(self, model):
            return ["head.weight"]

        def create_optimizer(self, model=None):
            self.optimizer = super().create_optimizer(model)
            self.optimizer.param_groups[0]["lr"] = 0.5
            return self.optimizer

        def create_scheduler(self, num_training_steps, optimizer=None):
            self.asked = num_training_steps, optimizer
            self.lr_scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, gamma=0.5)
            return self.lr_scheduler

    return Own


def test_a_subclass_makes_its_own_groups_optimizer_and_schedule(tmp_path):
    ours, theirs = (make(package, tmp_path, kind=own_parts(package)) for package in (mps_trainer, transformers))
    ours.train()
    theirs.train()
    assert ours.asked == theirs.asked == (5, None)
    assert [len(group["params"]) for group in ours.optimizer.param_groups] == [1, 15]
    assert logged(ours, "learning_rate") == logged(theirs, "learning_rate") == [0.5, 0.25, 0.125, 0.0625, 0.03125]
    assert_same_weights(ours, theirs)


def test_create_optimizer_takes_the_model_that_it_is_given(tmp_path):
    other = nn.Linear(3, 3)
    for trainer in both(tmp_path):
        optimizer = trainer.create_optimizer(other)
        assert [p for group in optimizer.param_groups for p in group["params"]] == [other.weight, other.bias]


def test_create_scheduler_takes_the_optimizer_that_it_is_given(tmp_path):
    optimizer = torch.optim.SGD(nn.Linear(3, 3).parameters(), lr=0.7)
    for trainer in both(tmp_path):
        assert trainer.create_scheduler(10, optimizer).optimizer is optimizer
        assert trainer.optimizer is None


# What the Trainer is given


class Halves:
    """A factory of optimizers, as for Muon: gets the model, not groups."""

    def __call__(self, model, lr, momentum):
        return torch.optim.SGD(model.head.parameters(), lr=lr, momentum=momentum)


@pytest.mark.parametrize("kind", [torch.optim.SGD, Halves])
def test_optimizer_cls_and_kwargs_come_before_optim(kind, tmp_path):
    given = {"lr": 0.1, "momentum": 0.5}
    ours, theirs = both(tmp_path, trainer={"optimizer_cls_and_kwargs": (kind, given)})
    ours.train()
    theirs.train()
    assert given == {"lr": 0.1, "momentum": 0.5}
    assert_same_groups(ours.optimizer, theirs.optimizer)
    assert logged(ours, "learning_rate") == logged(theirs, "learning_rate")
    assert_same_weights(ours, theirs)


@pytest.mark.parametrize("name", ["params", "model"])
def test_settings_may_bring_the_parameters(name, tmp_path):
    ours, theirs = (
        make(package, tmp_path, trainer={"model": model, "optimizer_cls_and_kwargs": (torch.optim.SGD, settings)})
        for package in (mps_trainer, transformers)
        for model in [Net()]
        for settings in [{name: [model.head.weight], "lr": 0.1}]
    )
    assert_same_groups(ours.create_optimizer(), theirs.create_optimizer())
    assert ours.optimizer.param_groups[0]["params"] == [ours.model.head.weight]
    assert set(ours.optimizer_cls_and_kwargs[1]) == {name, "lr"}  # kept for the optimizer of another train()


def test_two_ways_to_give_an_optimizer_are_refused_as_in_transformers(tmp_path):
    optimizer = torch.optim.SGD(Net().parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for given in (
        {"optimizers": (optimizer, None), "optimizer_cls_and_kwargs": (torch.optim.SGD, {"lr": 0.1})},
        {"optimizers": (optimizer, None), "model_init": Net},
        {"optimizers": (None, schedule), "model_init": Net},
    ):
        with pytest.raises(RuntimeError, match="incompatible"):
            make(transformers, tmp_path, given)
        with pytest.raises(RuntimeError, match="were given") as error:
            make(mps_trainer, tmp_path, given)
        assert isinstance(error.value, MisconfigurationException)


def train_twice(trainer) -> tuple:
    """Trains twice. Returns if the second run has the first's optimizer and schedule, and its learning rates."""
    seen = []
    for _ in range(2):
        trainer.train()
        seen.append((getattr(trainer.optimizer, "optimizer", trainer.optimizer), trainer.lr_scheduler))
    (first, first_schedule), (second, second_schedule) = seen
    return first is second, first_schedule is second_schedule, logged(trainer, "learning_rate")


@pytest.mark.parametrize("given", ["nothing", "optimizer", "schedule", "both", "model_init", "subclass"])
def test_a_second_train_keeps_what_transformers_keeps(given, tmp_path):
    results, trainers = [], []
    for package in (mps_trainer, transformers):
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        trainer = {
            "optimizer": {"model": model, "optimizers": (optimizer, None)},
            "both": {"model": model, "optimizers": (optimizer, schedule)},
            "schedule": {"model": model, "optimizers": (None, schedule)},
            "model_init": {"model_init": Net},
        }.get(given)
        kind = own_parts(package) if given == "subclass" else None
        trainers.append(make(package, tmp_path, trainer, kind=kind))
        results.append(train_twice(trainers[-1]))
    assert results[0] == results[1]
    assert_same_weights(*trainers)


def test_a_second_train_goes_on_with_the_optimizer_and_a_new_schedule(tmp_path):
    assert train_twice(make(mps_trainer, tmp_path))[:2] == (True, False)
    assert train_twice(make(mps_trainer, tmp_path, {"model_init": Net}))[:2] == (False, False)


# What they tell


def test_what_an_optimizer_holds_is_told_as_in_transformers(tmp_path):
    ours, theirs = both(tmp_path)
    for trainer in (ours, theirs):
        with pytest.raises(ValueError, match="optimizer"):
            trainer.get_learning_rates()
        with pytest.raises(ValueError, match="optimizer"):
            trainer.get_optimizer_group()
        trainer.create_optimizer()
    assert ours.get_num_trainable_parameters() == theirs.get_num_trainable_parameters()
    assert ours.get_learning_rates() == theirs.get_learning_rates() == [1e-2, 1e-2]
    assert [len(group) for group in ours.get_optimizer_group()] == [len(g) for g in theirs.get_optimizer_group()]
    # transformers finds the first parameter of a group only: it compares the others' values
    assert ours.get_optimizer_group(ours.model.head.bias) is ours.optimizer.param_groups[1]
    assert ours.get_optimizer_group("head.weight") is ours.optimizer.param_groups[0]
    assert len(ours.get_optimizer_group(nn.Parameter(torch.ones(1)))) == 2


def test_an_optimizer_with_modes_is_told_which_one_it_is(tmp_path):
    told = []

    class Modes(torch.optim.SGD):
        def train(self):
            told.append("train")

        def eval(self):
            told.append("eval")

    found = []
    for trainer in both(
        tmp_path,
        trainer={"optimizer_cls_and_kwargs": (Modes, {"lr": 0.1})},
        **{"max_steps": 2, "eval_strategy": "steps", "eval_steps": 1},
    ):
        told.clear()
        trainer.train()
        found.append(list(told))
    assert found[0] == found[1] == ["train", "eval", "train", "eval"]


def test_eight_bit_optimizers_keep_embeddings_at_32_bits(tmp_path):
    pytest.importorskip("bitsandbytes", reason="adamw_8bit is bitsandbytes'")
    trainer = make(mps_trainer, tmp_path, optim="adamw_8bit")
    overrides = trainer.create_optimizer().mng.module_weight_config_triple
    assert (trainer.model.embed, "weight", {"optim_bits": 32}) in overrides
