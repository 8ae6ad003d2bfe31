"""Tensors under a trace say that they are on mps, and the check refuses what the simulated device refuses."""

import contextlib
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers.pytorch_utils import compile_compatible_method_lru_cache

from mps_trainer import Trainer
from mps_trainer.check import RefusedCall, trace, trace_step
from mps_trainer.tools.check.residency import Residency
from tests.conftest import Classifier, on_device

from .conftest import what_to_do
from .waits import Given

CPU = Given("cpu")


def autocast(given: Given) -> None:
    with torch.autocast(given.values.device.type, torch.bfloat16):
        assert torch.is_autocast_enabled(given.values.device.type)
        assert (given.values @ given.values.T).dtype is torch.bfloat16
    assert not torch.is_autocast_enabled(given.values.device.type)


def asked(given: Given) -> None:
    values, host = given.values, torch.ones(3)
    assert (values.device.type, values.is_mps, values.is_cpu, values.get_device()) == ("mps", True, False, 0)
    assert values.device == given.rows.device == torch.device("mps", 0) != host.device
    assert (host.device, host.is_mps, host.is_cpu, host.get_device()) == (torch.device("cpu"), False, True, -1)
    assert torch.empty(2, device="meta").device.type == values.to("meta").device.type == "meta"
    assert values.cpu().device.type == values.to(host.device).device.type == "cpu"
    assert torch.backends.mps.is_available()


def in_float32(given: Given) -> torch.Tensor:
    """Makes positions as transformers' DETRs do."""
    dtype = torch.float32 if given.values.device.type == "mps" else torch.float64
    return torch.arange(4, dtype=dtype, device=given.values.device)[:, None] * given.values


def in_a_context(given: Given) -> torch.Tensor:
    with given.values.device:
        return torch.ones(4, 3) * given.values


def draws(given: Given) -> torch.Tensor:
    generator = torch.Generator(device=given.values.device).manual_seed(0)
    assert isinstance(generator, torch.Generator)
    assert isinstance(torch.default_generator, torch.Generator)
    return torch.rand(4, 3, generator=generator, device=given.values.device) * given.values


def waits(given: Given) -> None:
    event = torch.Event(device=given.values.device)
    event.record()
    event.synchronize()
    torch.mps.synchronize()
    torch.mps.empty_cache()
    torch.mps.set_rng_state(torch.mps.get_rng_state())


def recomputed(given: Given) -> None:
    values = given.copy().requires_grad_()
    checkpoint(lambda x: F.dropout(x).sin(), values, use_reentrant=False).sum().backward()
    checkpoint(lambda x: F.dropout(x).sin(), values, use_reentrant=True).sum().backward()


def with_vector(given: Given, gradients: bool = True) -> None:
    weight = given.values[0].clone().requires_grad_()
    with torch.set_grad_enabled(gradients):
        loss = F.linear(given.values, weight).sum()
    if gradients:
        loss.backward()


RUN: dict[str, Callable[[Given], object]] = {
    "autocast": autocast,
    "device": asked,
    "branch for mps": in_float32,
    "device as context": in_a_context,
    "generator": draws,
    "event and torch.mps": waits,
    "activation checkpointing": recomputed,
    "number of the host": lambda given: given.values * torch.tensor(2.0),
    "index of the host": lambda given: given.values[torch.tensor([0, 1])],
    "values put by an index of the host": lambda given: given.copy().index_put_(
        (torch.tensor([0]),), given.values[:1]
    ),
    "copy from the host": lambda given: given.copy().copy_(torch.ones(4, 3)),
    "copy to the host": lambda given: torch.ones(4, 3).copy_(given.values) * torch.ones(3),
    "to(tensor.device)": lambda given: torch.ones(3).to(given.values.device) * given.values,
    "to(tensor)": lambda given: torch.ones(3).to(given.values) * given.values,
    "to(tensor.device.type)": lambda given: torch.ones(3).to(given.values.device.type) * given.values,
    "type_as": lambda given: torch.ones(3).type_as(given.values) * given.values,
    "factory": lambda given: torch.ones(3, device=given.values.device) * given.values,
    "tensor of a list": lambda given: torch.tensor([1.0] * 3, device=given.values.device) * given.values,
    "new_ones": lambda given: given.values.new_ones(3) * given.values,
    "module": lambda given: nn.Linear(3, 2, device=given.values.device)(given.values),
    "class weights": lambda given: F.cross_entropy(
        given.values[:2], given.rows, torch.ones(3).to(given.values.device)
    ),
    "of the host alone": lambda given: torch.ones(3) * torch.ones(3).to(torch.ones(3).device),
    "numpy of the host": lambda given: given.copy().cpu().numpy(),
    "linear with a vector, no gradient": lambda given: with_vector(given, gradients=False),
}
REFUSED: dict[str, Callable[[Given], object]] = {
    "class weights": lambda given: F.cross_entropy(given.values[:2], given.rows, torch.ones(3)),
    "targets": lambda given: F.cross_entropy(given.values, torch.tensor([0, 1, 2, 0])),
    "positive weights": lambda given: F.binary_cross_entropy_with_logits(
        given.values, given.values.sigmoid(), pos_weight=torch.ones(3)
    ),
    "linear": lambda given: F.linear(given.values, torch.ones(2, 3)),
    "matrix product": lambda given: given.values @ torch.ones(3, 2),
    "embedding": lambda given: F.embedding(given.rows, torch.ones(4, 2)),
    "ids": lambda given: F.embedding(torch.tensor([0]), given.values),
    "convolution": lambda given: F.conv1d(given.values[None], torch.ones(2, 4, 1)),
    "norm": lambda given: F.layer_norm(given.values, (3,), torch.ones(3)),
    "list": lambda given: torch.cat([given.values, torch.ones(1, 3)]),
    "mask": lambda given: given.values.masked_fill(torch.ones(4, 3, dtype=torch.bool), 0.0),
    "in place": lambda given: torch.zeros(4, 3).add_(given.values),
    "in place, a number": lambda given: torch.zeros(()).add_(given.values.sum()),
    "to(the host's device)": lambda given: torch.ones(3).to(torch.ones(1).device) * given.values,
    "factory on the host's device": lambda given: torch.ones(3, device=torch.ones(1).device) * given.values,
    "read back": lambda given: given.values.sum(0).cpu() * given.values,
    "numpy()": lambda given: given.copy().numpy(),
    "numpy.asarray()": lambda given: np.asarray(given.copy()),
    "linear with a vector": with_vector,
    "histogram of whole numbers": lambda given: torch.histc(given.rows.int(), bins=4, min=0, max=3).float().sum(),
}


@pytest.mark.parametrize("how", RUN)
def test_what_runs_on_the_device_is_ready(mps, how):
    RUN[how](Given("mps"))
    report = trace(RUN[how], CPU)
    assert report.ready, report


@pytest.mark.parametrize("how", REFUSED)
def test_what_the_device_refuses_is_named_with_its_line(mps, how):
    with pytest.raises((RuntimeError, TypeError)):
        REFUSED[how](Given("mps"))
    report = trace(REFUSED[how], CPU)
    (call,) = report.refused_calls
    assert call.where is not None
    assert call.where.file == __file__
    assert report.exit_code == 1
    assert call.what in report.verdict


WEIGHTS = torch.tensor([1.0, 2.0])
LOSS = nn.CrossEntropyLoss(weight=WEIGHTS)
TEACHER = Classifier()


class Weighted(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        outputs = model(**inputs)
        loss = F.cross_entropy(outputs["logits"], inputs["labels"], self.weights(model))
        return (loss, outputs) if return_outputs else loss

    def weights(self, model):
        return WEIGHTS


class Moved(Weighted):
    def weights(self, model):
        return WEIGHTS.to(next(model.parameters()).device)


class MovedToArguments(Weighted):
    def weights(self, model):
        return WEIGHTS.to(self.args.device)


class LossModule(Weighted):
    def weights(self, model):
        LOSS(model(torch.ones(2, 4, device=self.args.device))["logits"], torch.ones(2, device=self.args.device).long())


class Distilling(Weighted):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        with torch.no_grad():
            target = self.teacher(model)(inputs["x"])["logits"]
        outputs = model(**inputs)
        loss = F.mse_loss(outputs["logits"], target.to(outputs["logits"].device))
        return (loss, outputs) if return_outputs else loss

    def teacher(self, model):
        return TEACHER


class DistillingMoved(Distilling):
    def teacher(self, model):
        return Classifier().to(next(model.parameters()).device)


class DistillingOnTheHost(Distilling):
    def teacher(self, model):
        return lambda x: TEACHER(x.cpu())


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (Weighted, "weight of aten::nll_loss_forward, a tensor of shape [2], is on the CPU"),
        (LossModule, "CrossEntropyLoss with weight is on the CPU"),
        (Distilling, "Classifier with hidden.weight and 5 more is on the CPU"),
        (Moved, None),
        (MovedToArguments, None),
        (DistillingMoved, None),
        (DistillingOnTheHost, None),
    ],
)
def test_the_check_and_the_device_agree_on_what_was_not_moved(make_trainer, kind, named):
    report = trace_step(make_trainer({"kind": kind}, max_steps=1))
    with on_device("mps"):
        trainer = make_trainer({"kind": kind}, max_steps=1, use_cpu=False)
        refused = pytest.raises(RuntimeError, match="same device") if named else contextlib.nullcontext()
        with refused:
            trainer.train()
    assert [call.what.startswith(named) for call in report.refused_calls] == ([True] if named else [])
    assert report.ready is not bool(named)
    for call in report.refused_calls:
        assert call.where.file == __file__
        assert ".to(" in what_to_do(report)


class Keeping(Distilling):
    def __init__(self, **given):
        super().__init__(**given)
        self.kept = Classifier()

    def teacher(self, model):
        return self.kept


def test_a_model_that_the_trainer_keeps_is_assumed_to_be_moved_unless_known(make_trainer):
    trainer = make_trainer({"kind": Keeping}, max_steps=1)
    report = trace_step(trainer)
    assert report.ready
    assert [note for note in report.notes if "kept is assumed to be on the device" in note]
    report = trace_step(trainer, placed=Residency(None))
    (call,) = report.refused_calls
    assert call.what == "Classifier with hidden.weight and 5 more is on the CPU, and its inputs on mps"


@compile_compatible_method_lru_cache(maxsize=2)
def positions(device: torch.device) -> torch.Tensor:
    return torch.arange(3, device=device)


def test_positions_that_transformers_keeps_by_device_are_not_those_of_a_trace(mps):
    for _ in range(2):
        report = trace(lambda: positions(CPU.values.device) + CPU.values)
        assert report.ready
        assert positions(Given("mps").values.device).device.type == "mps"


def test_a_trace_leaves_torch_as_it_was():
    names = [(torch, "Generator"), (torch, "Event"), (torch, "is_autocast_enabled"), (torch.mps, "synchronize")]
    before = [getattr(module, name) for module, name in names]
    trace(lambda: None)
    assert [getattr(module, name) for module, name in names] == before
    assert CPU.values.device.type == "cpu"
    assert not torch.backends.mps.is_available()


def test_refused_calls_are_in_the_report_for_machines():
    (found,) = trace(REFUSED["linear"], CPU).to_dict()["refused_calls"]
    assert found.keys() >= {"what", "phase", "remedy", "where", "calls"}
    assert found["where"]["text"].startswith('"linear"')
    assert RefusedCall.__doc__
