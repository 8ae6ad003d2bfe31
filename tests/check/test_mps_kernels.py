"""The tables of kernels that compile graphs and of kernels that read follow the release of torch."""

import pytest
import torch

from mps_trainer.check import operator_table, trace
from mps_trainer.tools.check.mps_kernels import _GRAPHS_BEFORE, compiles_graphs, reads

GRAPHS = {
    "linear": ("2.13.0", "2.14.1", "2.15.0"),
    "baddbmm_": ("2.13.0", "2.14.1", "2.15.0"),
    "_softmax": ("2.13.0", "2.14.1"),
    "pow.Tensor_Tensor": ("2.13.0", "2.14.1"),
    "index_select": ("2.13.0",),
    "pow.Tensor_Scalar": (),
}


@pytest.mark.parametrize("version", ["2.13.0", "2.14.1", "2.15.0+cu132"])
def test_the_operators_that_compile_graphs_follow_the_release(version):
    found = {name for name in GRAPHS if compiles_graphs(f"aten::{name}", version)}
    assert found == {name for name, versions in GRAPHS.items() if version.partition("+")[0] in versions}


def test_each_name_is_an_operator_with_a_kernel_and_listed_once():
    names = " ".join(_GRAPHS_BEFORE.values()).split()
    assert len(names) == len(set(names))
    native = {name.removeprefix("aten::") for name in operator_table().native}
    assert set(names) <= native | {name.partition(".")[0].removesuffix("_") for name in native}
    for name, read in reads("2.15.0").items():
        overload = name.removeprefix("aten::").partition(".")
        schema = getattr(getattr(torch.ops.aten, overload[0]), overload[2] or "default")._schema
        assert name.removeprefix("aten::") in native
        assert read.argument in {argument.name for argument in schema.arguments}
    assert "aten::linalg_qr" in reads("2.13.0")
    assert "aten::linalg_qr" not in reads("2.14.0")


def test_a_trace_counts_the_graphs_of_operators_that_compile_them():
    def step() -> None:
        for size in (2, 3, 3):
            square = torch.ones(size, size, device=torch.device("cpu"))
            torch.nn.functional.gelu(square.mm(square))

    report = trace(step)
    assert report.graphs == report.to_dict()["graphs"] == 2
    assert "2 graphs to compile" in str(report)
