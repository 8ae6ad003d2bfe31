"""Optimizers, parameter groups and learning-rate schedules of transformers' Trainer and this one, side by side."""

import re
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn
from transformers.trainer_utils import SchedulerType
from transformers.training_args import OptimizerNames

import mps_trainer
from mps_trainer import MisconfigurationException
from tests.conftest import logged, on_device, refusal

from .conftest import Library


class Net(nn.Module):
    """A classifier with every kind of normalisation, under names that do and do not say so."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.up = nn.Linear(8, 64)
        self.bn = nn.BatchNorm1d(64)
        self.attention = nn.Linear(64, 64)
        self.norm = nn.GroupNorm(4, 64)
        self.rms = nn.RMSNorm(64)
        self.final_norm = nn.LayerNorm(64)
        self.ln = nn.LayerNorm(64)
        self.frozen = nn.Linear(64, 64).requires_grad_(False)
        self.head = nn.Linear(64, 2)

    def forward(self, x, labels=None):
        hidden = self.norm(self.bn(torch.tanh(self.up(self.embed(x).mean(1)))))
        hidden = self.ln(self.final_norm(self.rms(self.frozen(self.attention(hidden)))))
        logits = self.head(hidden)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def rows(count: int = 32) -> list[dict]:
    numbers = torch.randint(0, 16, (count, 5), generator=torch.Generator().manual_seed(3))
    return [{"x": row, "labels": int(row.sum() % 2)} for row in numbers]


def make(package, folder, **settings):
    defaults = {
        **{"train_dataset": rows(), "eval_dataset": rows(8), "per_device_train_batch_size": 4, "max_steps": 5},
        **{"learning_rate": 1e-2, "weight_decay": 0.1, "adam_beta1": 0.8, "adam_beta2": 0.98, "adam_epsilon": 1e-6},
    }
    if not settings.keys() & {"model", "model_init"}:
        torch.manual_seed(0)
        settings["model"] = Net()
    return Library(package, folder).trainer(**{**defaults, **settings})


def both(folder, **how):
    """Returns a Trainer of each package, this one's first."""
    return [make(package, folder / package.__name__, **how) for package in (mps_trainer, transformers)]


def assert_same_weights(ours, theirs) -> None:
    """Asserts equality up to rounding: the norm to clip by is summed in another order."""
    torch.testing.assert_close(ours.model.state_dict(), theirs.model.state_dict())


# The package that an optimizer needs, by the beginnings of its name.
PACKAGES = {
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


def require_package_of(name: str) -> None:
    for package, begins in PACKAGES.items():
        if name.startswith(begins):
            pytest.importorskip(package)


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
    """Returns the settings without those made from a run's own parameters."""
    return {name: value for name, value in settings.items() if name not in ("params", "optimizer_dict", "state")}


def assert_same_groups(ours, theirs) -> None:
    theirs = getattr(theirs, "optimizer", theirs)  # Accelerate wraps it
    assert isinstance(ours, type(theirs))
    assert type(ours).__name__ == type(theirs).__name__
    for mine, other in zip(ours.param_groups, theirs.param_groups, strict=True):
        assert [p.shape for p in mine["params"]] == [p.shape for p in other["params"]]
        assert plain(mine) == plain(other)


def assert_same_training(ours, theirs) -> None:
    ours.train()
    theirs.train()
    assert logged(ours, "learning_rate") == logged(theirs, "learning_rate")
    assert logged(ours, "loss") == pytest.approx(logged(theirs, "loss"), abs=1e-6, rel=1e-5)
    assert_same_weights(ours, theirs)
    assert_same_groups(ours.optimizer, theirs.optimizer)


@pytest.mark.parametrize("name", [name.value for name in OptimizerNames if name.value not in REFUSED | LAYERWISE])
def test_optimizer_has_class_settings_and_effect_of_transformers(name, tmp_path):
    require_package_of(name)
    ours, theirs = both(tmp_path, **optim_settings(name))
    kind, settings = mps_trainer.Trainer.get_optimizer_cls_and_kwargs(ours.args, Net())
    their_kind, their_settings = transformers.Trainer.get_optimizer_cls_and_kwargs(theirs.args, Net())
    assert kind is their_kind
    assert plain(settings) == plain(their_settings)
    if name == "galore_adamw_8bit":
        return  # its step needs CUDA
    with torch.compiler.set_stance("force_eager"):  # a compiler, which torchao would start, is another program
        assert_same_training(ours, theirs)
    assert not torch.equal(ours.model.head.weight, make(mps_trainer, tmp_path).model.head.weight)  # it did train


@pytest.mark.parametrize("name", ["galore_adamw_layerwise", "apollo_adamw_layerwise"])
def test_layerwise_optimizer_equals_the_one_over_all_layers(name, tmp_path):
    # There is nothing to compare with in transformers: its schedule for them fails with torch 2.13.
    require_package_of(name)
    layers, whole = (
        make(mps_trainer, tmp_path, max_grad_norm=0.0, **optim_settings(each))
        for each in (name, name.removesuffix("_layerwise"))
    )
    layers.train()
    whole.train()
    assert_same_weights(layers, whole)
    assert logged(layers, "learning_rate")[-1] < logged(layers, "learning_rate")[0] == 1e-2
    accumulates = make(mps_trainer, tmp_path, gradient_accumulation_steps=2, **optim_settings(name))
    assert "accumulation" in refusal(accumulates.create_optimizer)


def test_settings_refused_by_optimizer_are_error_of_transformers(tmp_path):
    pytest.importorskip("galore_torch", reason="GaLore's own settings are looked at after its package")
    ours, theirs = both(tmp_path, **optim_settings("galore_adafactor_layerwise"))
    said = refusal(theirs.create_optimizer, kind=ValueError)
    assert "relative_step" in said
    error = refusal(ours.create_optimizer)
    assert "relative_step" in error
    assert said in error
    assert "optim_target_modules" in refusal(make(mps_trainer, tmp_path, optim="galore_adamw").create_optimizer)


@pytest.mark.parametrize("name", ALONE)
def test_optimizer_on_mps_has_losses_of_the_cpu(name, tmp_path):
    on_cpu = make(mps_trainer, tmp_path, **optim_settings(name))
    on_cpu.train()
    with on_device("mps", same_draws_as_cpu=True):
        on_mps = make(mps_trainer, tmp_path, use_cpu=False, **optim_settings(name))
        on_mps.train()
        assert on_mps.model.head.weight.device.type == "mps"
        assert logged(on_mps, "loss") == pytest.approx(logged(on_cpu, "loss"), abs=1e-5)


@pytest.mark.parametrize("name", ["galore_adamw", "adamw_8bit", "schedule_free_adamw", "grokadamw", "stable_adamw"])
def test_missing_package_is_error_of_transformers(name, tmp_path, monkeypatch):
    check = {"galore": "galore_torch", "adamw": "bitsandbytes", "schedule": "schedulefree", "stable": "torch_optimi"}
    package = check.get(name.split("_")[0], "grokadamw")
    monkeypatch.setattr(f"transformers.trainer_optimizer.is_{package}_available", lambda *a: False)
    ours, theirs = both(tmp_path, **optim_settings(name))
    with pytest.raises((ImportError, ValueError)) as their_error:
        theirs.create_optimizer()
    for kind in (type(their_error.value), ValueError):
        assert re.search(f"optim='{name}'.*nstall", refusal(ours.create_optimizer, kind=kind))


@pytest.mark.parametrize("given", ["momentum", "momentum=", "=0.9", "a=b=c", "momentum=fast"])
def test_invalid_optim_args_are_refused(given, tmp_path):
    trainer = make(mps_trainer, tmp_path, optim="sgd", optim_args=given)
    assert f"optim_args='{given}' cannot be" in refusal(trainer.create_optimizer)


def test_unknown_settings_of_optimizer_and_schedule_are_warned_of(tmp_path, caplog):
    make(mps_trainer, tmp_path, optim="sgd", optim_args="momentum=0.9,beta=1").create_optimizer()
    make(mps_trainer, tmp_path, optim="adamw_torch", optim_args="fused=1").create_optimizer()
    warned = [record.message for record in caplog.records if "optim_args" in record.message]
    assert ["beta" in warned[0], "fused" in warned[1], len(warned)] == [True, True, 2]
    trainer = make(mps_trainer, tmp_path, lr_scheduler_type="constant", lr_scheduler_kwargs={"power": 2})
    trainer.create_optimizer_and_scheduler(10)
    assert "lr_scheduler_kwargs" in caplog.text


@pytest.mark.parametrize(("device", "fused"), [("mps", True), ("cuda", True), ("cpu", True), ("meta", None)])
def test_fused_optimizer_is_fused_where_torch_supports_it(device, fused):
    args = SimpleNamespace(optim="adamw_torch_fused", optim_args=None, device=torch.device(device))
    rates = {"learning_rate": 1e-3, "adam_beta1": 0.9, "adam_beta2": 0.99, "adam_epsilon": 1e-8}
    vars(args).update(rates)
    kind, settings = mps_trainer.Trainer.get_optimizer_cls_and_kwargs(args)
    assert kind is torch.optim.AdamW
    assert settings.get("fused") is fused
    args.optim = "adamw_torch"
    assert "fused" not in mps_trainer.Trainer.get_optimizer_cls_and_kwargs(args)[1]


def test_create_optimizer_and_scheduler_use_what_they_are_given(tmp_path):
    other = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.7)
    for trainer in both(tmp_path):
        assert trainer.create_scheduler(10, optimizer).optimizer is optimizer
        assert trainer.optimizer is None
        groups = trainer.create_optimizer(other).param_groups
        assert [p for group in groups for p in group["params"]] == [other.weight, other.bias]


class Halves:
    """A factory of optimizers that gets the model instead of groups, as for Muon."""

    def __call__(self, model, lr, momentum):
        return torch.optim.SGD(model.head.parameters(), lr=lr, momentum=momentum)


@pytest.mark.parametrize("kind", [torch.optim.SGD, Halves])
def test_optimizer_cls_and_kwargs_come_before_optim(kind, tmp_path):
    given = {"lr": 0.1, "momentum": 0.5}
    assert_same_training(*both(tmp_path, optimizer_cls_and_kwargs=(kind, given)))
    assert given == {"lr": 0.1, "momentum": 0.5}


@pytest.mark.parametrize("name", ["params", "model"])
def test_optimizer_kwargs_may_name_parameters(name, tmp_path):
    ours, theirs = (
        make(package, tmp_path, model=model, optimizer_cls_and_kwargs=(torch.optim.SGD, settings))
        for package in (mps_trainer, transformers)
        for model in [Net()]
        for settings in [{name: [model.head.weight], "lr": 0.1}]
    )
    assert_same_groups(ours.create_optimizer(), theirs.create_optimizer())
    assert ours.optimizer.param_groups[0]["params"] == [ours.model.head.weight]
    assert set(ours.optimizer_cls_and_kwargs[1]) == {name, "lr"}  # kept for the optimizer of another train()


def test_conflicting_optimizers_are_refused_as_in_transformers(tmp_path):
    optimizer = torch.optim.SGD(Net().parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for given in (
        {"optimizers": (optimizer, None), "optimizer_cls_and_kwargs": (torch.optim.SGD, {"lr": 0.1})},
        {"optimizers": (optimizer, None), "model_init": Net},
        {"optimizers": (None, schedule), "model_init": Net},
    ):
        assert "incompatible" in refusal(make, transformers, tmp_path, **given, kind=RuntimeError)
        with pytest.raises(RuntimeError, match="were given") as error:
            make(mps_trainer, tmp_path, **given)
        assert isinstance(error.value, MisconfigurationException)


@pytest.mark.parametrize("given", ["nothing", "optimizer", "schedule", "both", "model_init"])
def test_second_train_keeps_optimizer_and_schedule_as_transformers(given, tmp_path):
    kept, trainers = [], []
    for package in (mps_trainer, transformers):
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        settings = {
            "optimizer": {"model": model, "optimizers": (optimizer, None)},
            "both": {"model": model, "optimizers": (optimizer, schedule)},
            "schedule": {"model": model, "optimizers": (None, schedule)},
            "model_init": {"model_init": Net},
        }.get(given, {})
        trainer = make(package, tmp_path, **settings)
        trainers.append(trainer)
        trainer.train()
        optimizer, schedule = getattr(trainer.optimizer, "optimizer", trainer.optimizer), trainer.lr_scheduler
        trainer.train()
        is_same = getattr(trainer.optimizer, "optimizer", trainer.optimizer) is optimizer
        kept.append((is_same, trainer.lr_scheduler is schedule))
    assert kept[0] == kept[1]
    assert logged(trainers[0], "learning_rate") == logged(trainers[1], "learning_rate")
    assert_same_weights(*trainers)
    if given in ("nothing", "model_init"):
        assert kept[0] == (given == "nothing", False)


def test_optimizer_queries_answer_as_in_transformers(tmp_path):
    ours, theirs = both(tmp_path)
    for trainer in (ours, theirs):
        assert "optimizer" in refusal(trainer.get_learning_rates, kind=ValueError)
        assert "optimizer" in refusal(trainer.get_optimizer_group, kind=ValueError)
        trainer.create_optimizer()
    assert ours.get_num_trainable_parameters() == theirs.get_num_trainable_parameters()
    assert ours.get_learning_rates() == theirs.get_learning_rates() == [1e-2, 1e-2]
    assert [len(group) for group in ours.get_optimizer_group()] == [len(g) for g in theirs.get_optimizer_group()]
    # transformers finds the first parameter of a group only: it compares the others' values
    assert ours.get_optimizer_group(ours.model.head.bias) is ours.optimizer.param_groups[1]
    assert ours.get_optimizer_group("head.weight") is ours.optimizer.param_groups[0]
    assert len(ours.get_optimizer_group(nn.Parameter(torch.ones(1)))) == 2


def test_optimizer_with_modes_is_switched(tmp_path):
    told = []

    class Modes(torch.optim.SGD):
        def train(self):
            told.append("train")

        def eval(self):
            told.append("eval")

    given = {"optimizer_cls_and_kwargs": (Modes, {"lr": 0.1}), "eval_strategy": "steps", "eval_steps": 1}
    for trainer in both(tmp_path, max_steps=2, **given):
        told.clear()
        trainer.train()
        assert told == ["train", "eval", "train", "eval"]


def test_8_bit_optimizer_keeps_embeddings_at_32_bits(tmp_path):
    pytest.importorskip("bitsandbytes", reason="adamw_8bit is bitsandbytes'")
    trainer = make(mps_trainer, tmp_path, optim="adamw_8bit")
    overrides = trainer.create_optimizer().mng.module_weight_config_triple
    assert (trainer.model.embed, "weight", {"optim_bits": 32}) in overrides


# With their default settings, these are constant for ten steps.
CONSTANT = ("constant", "reduce_lr_on_plateau", "greedy")
SCHEDULES = [
    *[(name.value, {}) for name in SchedulerType if name.value not in ("cosine_with_min_lr", "warmup_stable_decay")],
    ("cosine_with_restarts", {"num_cycles": 2}),
    ("polynomial", {"power": 2.0, "lr_end": 1e-5}),
    ("inverse_sqrt", {"timescale": 3}),
    ("cosine_with_min_lr", {"min_lr": 1e-4}),
    ("cosine_with_min_lr", {"min_lr_rate": 0.2}),
    ("cosine_warmup_with_min_lr", {"min_lr_rate": 0.1, "warmup_lr_rate": 0.3}),
    ("warmup_stable_decay", {"num_decay_steps": 3, "min_lr_ratio": 0.1, "decay_type": "cosine"}),
    ("reduce_lr_on_plateau", {"factor": 0.2, "patience": 0, "threshold": 10.0}),
    ("greedy", {"patience": 0, "factor": 0.5, "min_lr": 1e-4}),
]


@pytest.mark.parametrize(("name", "settings"), SCHEDULES)
def test_schedule_has_learning_rates_of_transformers(name, settings, tmp_path):
    if name == "cosine_warmup_with_min_lr" and not settings:
        settings = {"min_lr": 1e-5}
    ours, theirs = both(
        tmp_path,
        **{"lr_scheduler_type": name, "lr_scheduler_kwargs": settings, "warmup_steps": 0.25, "max_steps": 10},
        **{"eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True, "metric_for_best_model": "loss"},
    )
    ours.train()
    theirs.train()
    assert type(ours.lr_scheduler) is type(theirs.lr_scheduler)
    rates = logged(ours, "learning_rate")
    assert rates == logged(theirs, "learning_rate")
    assert (len(set(rates)) > 1) is (bool(settings) or name not in CONSTANT)
    assert_same_weights(ours, theirs)


def test_unknown_setting_of_schedule_is_refused(tmp_path):
    trainer = make(mps_trainer, tmp_path, lr_scheduler_type="cosine", lr_scheduler_kwargs={"min_lr": 1e-6})
    with pytest.raises(TypeError, match="min_lr") as error:
        trainer.create_optimizer_and_scheduler(10)
    assert isinstance(error.value, MisconfigurationException)
