"""Matrix products that M1 and M2 may compute wrong are told with their line, and leave a step ready."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mps_trainer.check import Tracer
from tests.check.conftest import what_to_do

INNER = 32_767


def tracer_for(version: str) -> Tracer:
    tracer = Tracer(unknown_on_device=True)
    tracer.recorder.table = replace(tracer.recorder.table, torch_version=version)
    return tracer


def products(function, version: str = "2.13.0"):
    tracer = tracer_for(version)
    with tracer:
        function()
    report = tracer.report()
    assert report.ready
    return {
        (each.name, each.phase, each.calls, each.inner, each.where.text if each.where else "")
        for each in report.large_products
    }


def test_the_head_of_a_language_model_in_its_gradient():
    head = nn.Linear(16, INNER, bias=False)

    def step():
        x = torch.ones(16, 16, requires_grad=True)
        y = head(x)  # the head
        y.mean().backward()

    assert products(step) == {("aten::mm", "backward", 1, INNER, "y = head(x)  # the head")}
    assert products(step, "2.14.0") == set()


X, WEIGHT, BIAS = torch.ones(16, INNER), torch.ones(16, INNER), torch.ones(16)
A, B = torch.ones(2, 16, INNER), torch.ones(2, INNER, 16)


def batched():
    return torch.bmm(A, B), torch.einsum("bik,bkj->bij", A, B), torch.baddbmm(A[:, :, :16], A, B)


@pytest.mark.parametrize(
    ("compute", "version", "expected"),
    [
        *((batched, version, {("aten::bmm", 2), ("aten::baddbmm", 1)}) for version in ("2.13.0", "2.15.0")),
        (lambda: F.linear(X, WEIGHT, BIAS), "2.13.0", {("aten::addmm", 1)}),
        (lambda: X @ WEIGHT.T, "2.13.0", {("aten::mm", 1)}),
        (lambda: X[:, 1:] @ WEIGHT.T[1:], "2.13.0", set()),
        (lambda: X[:15] @ WEIGHT.T, "2.13.0", set()),
        (lambda: X @ WEIGHT.T[:, :15], "2.13.0", set()),
    ],
)
def test_large_products_are_told_and_batched_ones_in_every_torch(compute, version, expected):
    assert {(name, calls) for name, _, calls, *_ in products(compute, version)} == expected


def test_a_wide_layer_in_inference_mode():
    with torch.inference_mode():
        (found,) = products(lambda: F.linear(X, WEIGHT, BIAS))
    assert found[0] in ("aten::linear", "aten::addmm")


def test_the_table_names_line_and_remedy():
    tracer = tracer_for("2.13.0")
    a, b = torch.ones(16, INNER), torch.ones(INNER, 16)
    with tracer:
        a @ b
        torch.bmm(a[None], b[None])
    report = tracer.report()
    assert report.exit_code == 0
    text = " ".join(str(report).split())
    assert "may be wrong aten::mm" in text
    assert "test_products.py:" in text
    assert "torch 2.14" in what_to_do(report)
    assert "195163" in what_to_do(report)
    assert [entry["inner"] for entry in report.to_dict()["large_products"]] == [INNER, INNER]
