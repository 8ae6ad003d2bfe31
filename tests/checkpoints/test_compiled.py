"""Checkpoints of models that are compiled, as a whole or in part, before the Trainer gets them."""

import math
import os
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from mps_trainer.utils.compiled import plain_name, uncompiled
from tests.conftest import Classifier, assert_same_weights, refusal, weights
from tests.tiny import tiny, with_lora

TEXTS = [{"input_ids": [1, 2 + i, 3], "labels": [1, 2 + i, 3]} for i in range(16)]
SAVING = {"max_steps": 4, "learning_rate": 0.05, "save_strategy": "steps", "save_steps": 2}
COMPILED = ["not", "whole", "part", "layers"]


@pytest.fixture(autouse=True)
def without_tracing():
    with torch.compiler.set_stance("force_eager"):
        yield


class Stacked(Classifier):
    """Has a block of layers, which can be compiled alone."""

    accepts_loss_kwargs = False  # the signature of a wrapper's forward() does not show this

    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def forward(self, x, labels=None):
        return super().forward(self.block(x), labels)


def compiled_parts(model, how):
    """Compiles one part of `model`, or several."""
    of, name = (model, "block") if isinstance(model, Stacked) else (model.bert, "encoder")
    if how == "part":
        setattr(of, name, torch.compile(getattr(of, name)))
    if how == "layers":
        layers = of.block if isinstance(model, Stacked) else of.encoder.layer
        for i in range(len(layers)):
            layers[i] = torch.compile(layers[i])
    return model


def parts(kind, how):
    """Returns the arguments of a Trainer for a plain module, or for a model whose weights are tied."""
    torch.manual_seed(0)
    model = compiled_parts(Stacked() if kind == "module" else tiny("BertForMaskedLM"), how)
    if kind == "adapters":
        model = with_lora(model, task_type=None, target_modules=["query", "value"])
    model = torch.compile(model) if how == "whole" else model
    return {"model": model, **({} if kind == "module" else {"train_dataset": TEXTS, "eval_dataset": TEXTS})}


def plain(model):
    return {plain_name(name): tensor for name, tensor in weights(model).items()}


@pytest.fixture
def settings():
    return {**SAVING, "remove_unused_columns": False, "label_names": ["labels"]}


@pytest.mark.parametrize("kind", ["module", "of transformers", "adapters"])
@pytest.mark.parametrize("saved_as", COMPILED)
def test_a_checkpoint_resumes_however_either_model_is_compiled(trained, tmp_path, settings, kind, saved_as):
    first = trained(parts(kind, saved_as), output_dir=str(tmp_path / "first"), **settings)
    folder = tmp_path / "first" / "checkpoint-2"
    [file] = folder.glob("*model.safetensors")
    assert not [name for name in load_file(file) if name != plain_name(name)]
    for resumed_as in COMPILED:
        again = trained(parts(kind, resumed_as), folder, output_dir=str(tmp_path / resumed_as), **settings)
        assert_same_weights(plain(first.model), plain(again.model))


@pytest.mark.parametrize("how", ["whole", "part"])
@pytest.mark.parametrize("kind", ["module", "of transformers", "adapters"])
def test_the_best_weights_are_loaded_into_a_compiled_model(trained, settings, kind, how):
    best = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True, "greater_is_better": True}
    trainer = trained(parts(kind, how), **settings, **best, metric_for_best_model="eval_loss")
    expected = max(entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry)
    assert math.isclose(trainer.evaluate()["eval_loss"], expected, rel_tol=1e-5)


@pytest.mark.parametrize("kind", ["module", "adapters"])
@pytest.mark.parametrize("resumed_as", COMPILED)
def test_weights_with_the_names_of_wrappers_are_loaded(trained, tmp_path, settings, kind, resumed_as):
    first = trained(parts(kind, "not"), output_dir=str(tmp_path / "first"), **settings)
    folder = tmp_path / "first" / "checkpoint-2"
    [file] = folder.glob("*model.safetensors")
    saved = load_file(file)  # transformers uses the same names
    renamed = {re.sub("(block|encoder)[.]", r"\1._orig_mod.", name): tensor for name, tensor in saved.items()}
    assert renamed.keys() != saved.keys()
    save_file(renamed, file, metadata={"format": "pt"})
    os.remove(folder / "manifest.json")
    again = trained(parts(kind, resumed_as), folder, output_dir=str(tmp_path / "again"), **settings)
    assert_same_weights(plain(first.model), plain(again.model))


def test_names_in_errors_are_those_of_the_model_that_is_not_compiled(trained, tmp_path, settings):
    trained(parts("module", "whole"), **settings)
    other = Stacked()
    del other.block[1]
    said = refusal(trained, {"model": torch.compile(other)}, tmp_path / "run" / "checkpoint-2", **settings)
    assert "0 parameters are missing and 2 are unexpected, for example block.1.bias." in said


def test_an_adapter_with_unknown_names_is_refused(trained, tmp_path, settings):
    trained(parts("adapters", "not"), **settings)
    file = tmp_path / "run" / "checkpoint-2" / "adapter_model.safetensors"
    save_file({name.replace("layer.0", "layer.7"): tensor for name, tensor in load_file(file).items()}, file)
    os.remove(file.with_name("manifest.json"))
    said = refusal(trained, parts("adapters", "not"), file.parent, **settings)
    assert "do not fit this model: 4 names are unexpected, for example base_model.model.bert.encoder.layer.7" in said


def test_wrappers_are_put_back():
    model = torch.compile(compiled_parts(Stacked(), "layers"))
    before = list(model.named_modules())
    with uncompiled(model) as inner:
        assert inner.state_dict().keys() == Stacked().state_dict().keys()
    assert list(model.named_modules()) == before
