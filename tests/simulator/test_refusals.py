"""The device refuses what a Mac refuses, with the same type of error and the same facts."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from mps_trainer.errors import MisconfigurationException
from mps_trainer.simulator import activate, simulated_mps
from tests import installed_torch


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2, dtype=torch.float64, device="mps"),
        lambda: torch.ones(2, dtype=torch.float64).to("mps"),
        lambda: torch.ones(2, device="mps").double(),
        lambda: torch.ones(2, device="mps").sum(dtype=torch.float64),
        lambda: torch.tensor([1.0], dtype=torch.float64, device="mps"),
        lambda: nn.Linear(2, 2, device="mps").double(),
        lambda: nn.Linear(2, 2).double().to("mps"),
    ],
)
def test_float64_is_refused(mps, make):
    with pytest.raises(TypeError, match=r"Cannot convert a MPS Tensor to float64 dtype.*float32 instead"):
        make()


@pytest.mark.parametrize(
    "compute",
    [
        lambda here, there: here + there,
        lambda here, there: there + here,
        lambda here, there: here @ there,
        lambda here, there: there.add_(here),
        lambda here, there: torch.cat([here, there]),
        lambda here, there: torch.where(here > 0, here, there),
        lambda here, there: nn.functional.linear(here, there),
        lambda here, there: nn.functional.embedding(torch.tensor([1], device="mps"), there),
        lambda here, there: nn.functional.embedding(torch.tensor([1]), here),
        lambda here, there: nn.functional.cross_entropy(here, torch.tensor([1, 2, 0])),
        lambda here, there: torch.add(here, 1, out=there),
        lambda here, there: nn.functional.scaled_dot_product_attention(here[None], there[None], here[None]),
        lambda here, there: here[0, 0] * there,
    ],
)
def test_tensors_on_two_devices_are_refused(mps, compute):
    with pytest.raises(RuntimeError, match=r"at least two devices|same device"):
        compute(torch.ones(3, 3, device="mps"), torch.ones(3, 3))


TEXTS = {
    "'mat2' of aten::mm is on cpu.*Placeholder": lambda: torch.ones(2, 2, device="mps") @ torch.ones(2, 2),
    r"Input type \(MPSFloatType\) and weight type \(torch.FloatTensor\) should be the same": lambda: nn.Conv1d(
        2, 2, 1
    )(torch.ones(1, 2, 3, device="mps")),
    "not at the same device": lambda: nn.LSTM(2, 2)(torch.ones(1, 1, 2, device="mps")),
    "projections is not currently supported with MPS": lambda: nn.LSTM(4, 4, proj_size=2, device="mps")(
        torch.ones(1, 1, 4, device="mps")
    ),
    "pinned": lambda: torch.ones(2, device="mps", pin_memory=True),
    "one mps device": lambda: torch.ones(2).to("mps:1"),
    "Expected a 'mps' device type for generator": lambda: torch.rand(2, device="mps", generator=torch.Generator()),
    "DispatchStub: missing kernel for mps": lambda: torch.kaiser_window(5, device="mps"),
    "'aten::_weight_int4pack_mm'.*hardware alone": lambda: torch.ops.aten._weight_int4pack_mm(
        torch.ones(2, 2, device="mps"), torch.ones(2, device="mps"), 32, None
    ),
}


@pytest.mark.parametrize("text", TEXTS)
def test_refusals_have_the_text_of_hardware(mps, text):
    with pytest.raises(RuntimeError, match=text):
        TEXTS[text]()


@pytest.mark.skipif(installed_torch() >= (2, 14), reason="there is pinned memory from torch 2.14 on")
def test_pinned_memory_is_refused_until_torch_2_13(mps):
    for pin in (torch.ones(2).pin_memory, lambda: torch.ones(2, pin_memory=True)):
        with pytest.raises(RuntimeError, match='"cpu" to a storage on different device "mps:0"'):
            pin()


def test_operator_without_a_kernel_is_refused(mps):
    with pytest.raises(
        NotImplementedError, match=r"'aten::multi_margin_loss' is not currently implemented for the MPS dev"
    ):
        margin_loss()
    assert mps.report().fell_back == ()


def margin_loss() -> torch.Tensor:
    torch.manual_seed(0)
    scores = torch.randn(2, 4).to("mps").requires_grad_()
    return nn.functional.multi_margin_loss(scores, torch.tensor([1, 3], device="mps"))


def test_fallback_runs_on_the_cpu_and_warns_once_per_operator(mps_with_fallback):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first, second = margin_loss(), margin_loss()
    assert torch.equal(first.cpu(), second.cpu())
    assert first.device.type == "mps"
    texts = [str(warning.message) for warning in caught if "MPS backend" in str(warning.message)]
    assert [text.split("'")[1] for text in texts] == ["aten::multi_margin_loss"]
    assert caught[0].category is UserWarning
    (fallen,) = mps_with_fallback.report().fell_back
    assert (fallen.name, fallen.calls) == ("aten::multi_margin_loss", 2)


def test_fallback_takes_tensors_of_both_devices(mps_with_fallback):
    scores = torch.eye(2)
    with pytest.warns(UserWarning, match="multi_margin_loss"):
        loss = nn.functional.multi_margin_loss(scores.to("mps"), torch.tensor([0, 1]))
    assert torch.equal(loss.cpu(), nn.functional.multi_margin_loss(scores, torch.tensor([0, 1])))


def test_warning_names_the_line_of_the_call(mps_with_fallback):
    with pytest.warns(UserWarning, match="mode") as caught:
        torch.mode(torch.eye(2, device="mps"))
    assert caught[0].filename == __file__


def test_some_operators_fall_back_whatever_the_switch_says(mps):
    table, rows = torch.eye(3, device="mps"), torch.tensor([0], device="mps")
    with pytest.warns(UserWarning, match="embedding_renorm_"):
        nn.functional.embedding(rows, table, max_norm=0.5)
    assert [operator.name for operator in mps.report().fell_back] == ["aten::embedding_renorm_"]


@pytest.fixture(scope="module")
def custom():
    """Operators of one's own, with kernels for the CPU only."""
    library = torch.library.Library("simulator_tests", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    library.define("first(Tensor(a) x) -> Tensor(a)")
    library.impl("first", lambda x: x[0], "CPU")
    library.define("sum_composite(Tensor x) -> Tensor")
    library.impl("sum_composite", lambda x: x.sum() + 1, "CompositeImplicitAutograd")
    yield torch.ops.simulator_tests
    library._destroy()


def test_custom_operator_for_the_cpu_is_refused(mps, custom):
    for operator in (custom.twice, custom.first):
        with pytest.raises(NotImplementedError, match="simulator_tests::"):
            operator(torch.ones(2, device="mps"))


def test_custom_operator_for_the_cpu_falls_back(mps_with_fallback, custom):
    with pytest.warns(UserWarning, match="simulator_tests::twice"):
        assert custom.twice(torch.ones(2, device="mps")).tolist() == [2, 2]


def test_view_that_falls_back_is_a_copy(mps_with_fallback, custom):
    tensor = torch.ones(2, 2, device="mps")
    with pytest.warns(UserWarning, match="simulator_tests::first"):
        custom.first(tensor).zero_()
    assert tensor.tolist() == [[1, 1], [1, 1]]


def test_custom_operator_made_of_others_runs(mps, custom):
    assert custom.sum_composite(torch.ones(2, device="mps")).item() == 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2, 2, device="mps").to_sparse(),
        lambda: torch.sparse_coo_tensor([[0]], [1.0], (2,), device="mps", check_invariants=False),
        lambda: torch.quantize_per_tensor(torch.ones(2, device="mps"), 0.1, 0, torch.quint8),
    ],
)
def test_tensors_that_are_not_dense_are_refused(mps, make):
    with pytest.raises(NotImplementedError):
        make()


def test_second_device_at_once_is_refused(mps):
    with pytest.raises(MisconfigurationException, match="already active"), simulated_mps():
        pass
    with pytest.raises(MisconfigurationException, match="already active"):
        activate()
    assert torch.ones(1, device="mps").item() == 1  # and the first one goes on


@pytest.mark.parametrize("memory", ["", "much", "0", "-1GB", "16XB", 0])
def test_bad_amount_of_memory_is_refused(memory):
    with pytest.raises(MisconfigurationException, match="is not an amount of memory"), simulated_mps(memory=memory):
        pass
