"""Optimizers, parameter groups and schedules: transformers' Trainer and this one, side by side on the CPU."""

from __future__ import annotations

import importlib.util

import pytest
import torch
import transformers
from torch import nn
from transformers.training_args import OptimizerNames
from transformers.trainer_utils import SchedulerType

import mps_trainer
from mps_trainer import MisconfigurationException
from mps_trainer.arguments import choices

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


class Net(nn.Module):
    """With every kind of normalisation, under names that do and do not say so."""

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


def make(package, folder, trainer: dict | None = None, kind: type | None = None, **settings):
    """A Trainer of `package`, with the same model, data and seed as that of the other."""
    settings = {
        **{"use_cpu": True, "disable_tqdm": True, "report_to": "none", "save_strategy": "no"},
        **{"per_device_train_batch_size": 4, "max_steps": 5, "logging_steps": 1, "learning_rate": 1e-2},
        **{"weight_decay": 0.1, "adam_beta1": 0.8, "adam_beta2": 0.98, "adam_epsilon": 1e-6, **settings},
    }
    args = package.TrainingArguments(output_dir=str(folder), **settings)
    given = {"train_dataset": rows(), "eval_dataset": rows(8), **(trainer or {})}
    if "model" not in given and "model_init" not in given:
        torch.manual_seed(0)
        given["model"] = Net()
    return (kind or package.Trainer)(args=args, **given)


def both(folder, **settings):
    return [make(package, folder / package.__name__, **settings) for package in (mps_trainer, transformers)]


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


def logged(trainer, key: str) -> list:
    return [entry[key] for entry in trainer.state.log_history if key in entry]


def plain(settings: dict) -> dict:
    """Settings without what is made of a run's own parameters."""
    return {name: value for name, value in settings.items() if name not in ("params", "optimizer_dict", "state")}


def assert_same_groups(ours, theirs) -> None:
    theirs = getattr(theirs, "optimizer", theirs)  # Accelerate wraps it
    assert type(ours) is type(theirs)
    assert len(ours.param_groups) == len(theirs.param_groups)
    for mine, other in zip(ours.param_groups, theirs.param_groups, strict=True):
        assert mine.keys() == other.keys()
        assert [p.shape for p in mine["params"]] == [p.shape for p in other["params"]]
        assert plain(mine) == plain(other)


def assert_same_weights(ours, theirs) -> None:
    theirs = theirs.model.state_dict()
    for name, value in ours.model.state_dict().items():
        assert torch.equal(value, theirs[name]), name


def test_every_optimizer_of_transformers_has_its_name_here():
    assert {o.name: o.value for o in OptimizerNames}.items() <= {o.name: o.value for o in choices.OptimizerNames}.items()
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
    try:
        theirs.train()
    except (AssertionError, ValueError) as error:  # GaLore at 8 bits needs CUDA
        assert "CUDA" in str(error)
        with pytest.raises(type(error), match="CUDA"):
            ours.train()
        return
    ours.train()
    assert_same_groups(ours.optimizer, theirs.optimizer)
    assert logged(ours, "loss") == pytest.approx(logged(theirs, "loss"), abs=1e-6)
    assert_same_weights(ours, theirs)
    start = make(mps_trainer, tmp_path).model.head.weight
    assert not torch.equal(ours.model.head.weight, start)  # it did train


@pytest.mark.parametrize("name", sorted(LAYERWISE))
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
    if "8bit" in name or "adafactor" in name:
        with pytest.raises((AssertionError, MisconfigurationException), match="CUDA|relative_step"):
            layers.train()
        return
    layers.train()
    whole.train()
    assert_same_weights(layers, whole)
    assert logged(layers, "learning_rate")[-1] < logged(layers, "learning_rate")[0] == 1e-2
    with pytest.raises(MisconfigurationException, match="accumulation"):
        make(mps_trainer, tmp_path, gradient_accumulation_steps=2, **optim_settings(name)).create_optimizer()
