"""Layers, losses and optimizers that run on mps are traced without a false alarm, and the others are named."""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mps_trainer.check import Support, trace
from tests import installed_torch

from .conftest import bad, names, reads, what_to_do

SEQUENCE = (torch.randn(2, 5, 8),)
IMAGE = (torch.randn(2, 3, 12, 12),)
# The layers of which torch makes several operators, or chooses them by device.
LAYERS = {
    "conv2d": (nn.Conv2d(3, 4, 3, padding="same", groups=1), IMAGE),
    "conv_transpose2d": (nn.ConvTranspose2d(3, 4, 2, stride=2), IMAGE),
    "batch norm and pools": (nn.Sequential(nn.BatchNorm2d(3), nn.MaxPool2d(2), nn.AvgPool2d(2), nn.Flatten()), IMAGE),
    "lstm": (nn.LSTM(8, 6, num_layers=2, bidirectional=True, batch_first=True, dropout=0.1), SEQUENCE),
    "gru": (nn.GRU(8, 6, num_layers=2, bidirectional=True, batch_first=True), SEQUENCE),
    "multihead attention": (nn.MultiheadAttention(8, 2, batch_first=True, dropout=0.1), SEQUENCE * 3),
    "transformer encoder": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), SEQUENCE),
}


# The operators of mps that torch chooses for a layer.
OF_MPS = {
    "conv2d": {"_mps_convolution", "mps_convolution_backward"},
    "conv_transpose2d": {"_mps_convolution_transpose", "mps_convolution_transpose_backward"},
    "transformer encoder": {"_softmax", "bmm", "_softmax_backward_data"},
}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_that_runs_on_mps_has_nothing_failing_nor_waiting(layer, trace_training):
    module, inputs = LAYERS[layer]
    report = trace_training(module, *inputs)
    assert report.ready, report
    assert bad(report) == set()
    assert reads(report) == []
    assert report.notes == []
    assert {use.phase for use in report.operators} == {"forward", "backward", "optimizer"}
    assert {f"aten::{name}" for name in OF_MPS.get(layer, ())} <= names(report)
    assert not any("flash" in name for name in names(report))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *(("AdamW", settings) for settings in ({}, {"foreach": False}, {"foreach": True}, {"fused": True})),
        ("AdamW", {"amsgrad": True}),
        ("Adam", {"fused": True}),
        ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
        ("SGD", {"lr": 0.1, "fused": True}),
        *((name, {}) for name in ("Adafactor", "RMSprop", "Adagrad", "NAdam", "RAdam")),
    ],
)
def test_an_optimizer_has_nothing_failing(name, settings, trace_training):
    optimizer = functools.partial(getattr(torch.optim, name), **settings)
    report = trace_training(nn.Linear(8, 4), *SEQUENCE, optimizer=optimizer)
    assert report.ready, report
    assert bad(report) == set()
    if settings != {"foreach": False}:
        # Their counters of steps are on the host, and no other value is asked for. torch's Adafactor is the exception.
        assert reads(report) == [] or name == "Adafactor"


class Margin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        targets = torch.ones(2, dtype=torch.long, device=x.device)
        return F.multi_margin_loss(self.head(x), targets)  # the line to be named


def test_a_loss_without_a_kernel_is_named_with_its_line(trace_training):
    report = trace_training(Margin(), torch.randn(2, 8), fallback=False)
    assert not report.ready
    assert report.exit_code == 1
    failing = {use.phase: use for use in report.with_support(Support.FAILS)}
    assert failing["forward"].name == "aten::multi_margin_loss"
    assert failing["backward"].name == "aten::multi_margin_loss_backward"
    # The backward pass is called elsewhere: what helps is the line whose gradient it is.
    for use in failing.values():
        assert use.where is not None
        assert use.where.file == __file__
        assert use.where.text.endswith("# the line to be named")
    table = str(report)
    assert "PYTORCH_ENABLE_MPS_FALLBACK=1" in table
    assert "test_models.py:" in table
    assert max(map(len, table.splitlines())) <= 120
    falls_back = trace_training(Margin(), torch.randn(2, 8), fallback=True)
    assert (falls_back.ready, falls_back.exit_code) == (True, 0)
    assert names(falls_back, Support.FALLS_BACK) == {use.name for use in failing.values()}


@pytest.mark.skipif(installed_torch() >= (2, 14), reason="it has a kernel from torch 2.14 on")
def test_the_singular_value_decomposition_falls_back_by_itself_and_its_values_alone_fail():
    matrix = torch.randn(4, 3)
    assert names(trace(torch.linalg.svd, matrix, fallback=False), Support.FALLS_BACK) == {"aten::linalg_svd"}
    assert trace(torch.linalg.svdvals, matrix, fallback=False).exit_code == 1


def test_an_operator_of_a_custom_library_is_looked_up_in_this_process():
    library = torch.library.Library("mps_trainer_traced", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    report = trace(lambda: torch.ops.mps_trainer_traced.twice(torch.ones(2, device=torch.device("cpu"))))
    assert "mps_trainer_traced::twice" in bad(report)
    assert "This build of its library" in what_to_do(report)


def test_a_compiled_model_is_traced_without_the_compiler():
    model = torch.compile(nn.Linear(8, 4), backend=lambda graph, inputs: pytest.fail("compiled"))
    assert "aten::addmm" in names(trace(model, torch.randn(2, 8)))


def test_sparse_gradients_are_looked_up_as_sparse_kernels(trace_training):
    embedding = nn.Embedding(10, 4, sparse=True)
    report = trace_training(embedding, torch.tensor([1, 2]), optimizer=torch.optim.SparseAdam, clip=False)
    assert "aten::_sparse_coo_tensor_with_dims_and_tensors" in names(report, Support.NATIVE)
    assert bad(report) == set()
