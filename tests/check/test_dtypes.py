"""Number formats that mps has not are named by where they came from; those that torch only passes through are not."""

import numpy as np
import pytest
import torch
from torch import nn

from mps_trainer import Trainer
from mps_trainer.check import CoverageReport, Tracer, trace, trace_step

from ..conftest import Classifier, examples

X = torch.randn(4, 3)


def problems(report: CoverageReport) -> list[str]:
    return [problem.what for problem in report.dtype_problems]


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Module()
        self.body.register_buffer("scale", torch.ones(3, dtype=torch.float64))
        self.head = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x * self.body.scale.float())


def test_a_float64_buffer_or_parameter_is_named_with_its_module():
    report = trace(Scaled(), X)
    assert problems(report) == ["buffer body.scale of Scaled"]
    assert not report.ready
    assert report.exit_code == 1
    assert "float64" in str(report)
    assert "float32" in str(report)
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2, bias=False).double())
    model.forward = model[0].forward
    assert problems(trace(model, X)) == ["parameter 1.weight of Sequential"]


def test_a_float64_column_is_named():
    class Takes(nn.Module):
        def forward(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            return (x * weights.float()).sum()

    weights = torch.from_numpy(np.ones(3))
    assert problems(trace(Takes(), X, weights)) == ["column weights of the batch for Takes"]
    assert problems(trace(Takes(), x=X, weights=weights)) == ["column weights of the batch for Takes"]
    with Tracer() as tracer:  # other trainers move it so
        Takes()(X, weights=weights.to(torch.device("cpu")))
    (problem,) = tracer.report().dtype_problems
    assert problem.what == "column weights of the batch for Takes"
    assert problem.where is not None
    assert problem.where.file == __file__


@pytest.mark.parametrize(
    "make",
    [
        lambda: X.to(torch.float64),
        lambda: X.sum(dtype=torch.float64),
        lambda: X.to(torch.complex128),
        lambda: torch.zeros(3, dtype=torch.float64, device=X.device),
        lambda: torch.tensor(np.ones(2), device=X.device),
        lambda: torch.ones_like(X, dtype=torch.float64) * 2 + 1,
    ],
)
def test_a_float64_tensor_made_in_the_step_is_named_with_its_line_and_what_follows_from_it_is_not(make):
    (problem,) = trace(lambda: make() * 2 + 1).dtype_problems
    assert problem.fails
    assert problem.where is not None
    assert problem.where.file == __file__


@pytest.mark.parametrize(
    "make",
    [
        lambda: X * 0.1 + 3.0,
        lambda: X / np.float64(3.0),
        lambda: torch.where(X > 0, X, 0.0),
        lambda: torch.remainder(X, 0.3) + torch.take_along_dim(X, X.argsort(-1), -1),
        lambda: torch.full((2,), 0.5, device=X.device) * torch.tensor(0.25),
        lambda: torch.zeros(3, dtype=torch.float64).sum().item(),  # on the host
        lambda: torch.tensor([1.5, 2.5], device=X.device),
    ],
)
def test_numbers_of_python_are_no_float64_tensors(make):
    assert problems(trace(make)) == []


def test_gradients_added_up_in_float64_on_the_cpu_alone_are_no_problem():
    weight = torch.randn(4, 3, requires_grad=True)
    assert problems(trace(lambda: weight.renorm(2, 0, 1.0).sum().backward())) == []


class Weighted(Classifier):
    def forward(self, x, labels=None, weight=None):
        assert weight is None or weight.dtype is not torch.float64
        return super().forward(x, labels)


def traced_with(make_trainer, weight, model):
    data = [{**example, "weight": weight} for example in examples(16)]
    return trace_step(make_trainer(trainer={"model": model, "train_dataset": data, "eval_dataset": None}))


@pytest.mark.parametrize("value", [np.float64(0.5), np.ones(2)], ids=["number", "array"])
def test_a_float64_column_is_converted_by_our_trainer_and_the_report_says_so(make_trainer, value):
    report = traced_with(make_trainer, value, Weighted())
    (problem,) = report.dtype_problems
    assert problem.what.startswith("column weight of the batch")
    assert "numpy's float64" in problem.what
    assert "default_data_collator" in problem.what
    assert not problem.fails
    assert report.ready
    assert "converted" in str(report)


class TakingAnyWeight(Classifier):
    def forward(self, x, labels=None, weight=None):
        return super().forward(x, labels)


def test_a_float64_column_fails_if_a_patched_method_moves_the_batch(make_trainer, monkeypatch):
    monkeypatch.setattr(Trainer, "_prepare_input", lambda self, data: data)
    (problem,) = traced_with(make_trainer, np.float64(0.5), TakingAnyWeight()).dtype_problems
    assert problem.fails


def test_a_complex128_column_is_converted_and_a_float64_buffer_named_once(make_trainer):
    report = traced_with(make_trainer, torch.tensor(1j, dtype=torch.complex128), Weighted())
    assert [problem.fails for problem in report.dtype_problems] == [False]
    assert "makes it complex64" in report.dtype_problems[0].remedy
    model = Weighted()
    model.register_buffer("scale", torch.ones((), dtype=torch.float64))
    report = traced_with(make_trainer, 1, model)
    assert problems(report) == ["buffer scale of Weighted"]
    assert not report.ready
