"""The device refuses what a Mac refuses, with the same type of error and the same facts."""

import warnings

import pytest
import torch
from torch import nn

from mps_trainer.simulator import activate, simulated_mps
from tests import installed_torch
from tests.conftest import refusal

FLOAT64 = r"Cannot convert a MPS Tensor to float64 dtype.*float32 instead"
DEVICES = r"at least two devices|same device"


def on(*size, **settings):
    return torch.ones(*(size or (3, 3)), device="mps", **settings)


def off():
    return torch.ones(3, 3)


def margin_loss() -> torch.Tensor:
    torch.manual_seed(0)
    scores = torch.randn(2, 4).to("mps").requires_grad_()
    return nn.functional.multi_margin_loss(scores, torch.tensor([1, 3], device="mps"))


WEIGHT_PACKED = torch.ops.aten._weight_int4pack_mm
PINNED = '"cpu" to a storage on different device "mps:0"'  # from torch 2.14 on there is pinned memory
PINS = [torch.ones(2).pin_memory, lambda: torch.ones(2, pin_memory=True)]
# Error, its text, and what raises it.
REFUSED = [
    (TypeError, FLOAT64, lambda: on(2, dtype=torch.float64)),
    (TypeError, FLOAT64, lambda: torch.ones(2, dtype=torch.float64).to("mps")),
    (TypeError, FLOAT64, lambda: on(2).sum(dtype=torch.float64)),
    (RuntimeError, DEVICES, lambda: on() + off()),
    (RuntimeError, DEVICES, lambda: off().add_(on())),
    (RuntimeError, DEVICES, lambda: torch.cat([on(), off()])),
    (RuntimeError, DEVICES, lambda: torch.add(on(), 1, out=off())),
    (RuntimeError, DEVICES, lambda: nn.functional.scaled_dot_product_attention(on()[None], off()[None], on()[None])),
    (RuntimeError, DEVICES, lambda: on()[0, 0] * off()),
    (RuntimeError, "'mat2' of aten::mm is on cpu.*Placeholder", lambda: on(2, 2) @ torch.ones(2, 2)),
    (RuntimeError, "MPSFloatType.*torch.FloatTensor.*the same", lambda: nn.Conv1d(2, 2, 1)(on(1, 2, 3))),
    (RuntimeError, "not at the same device", lambda: nn.LSTM(2, 2)(on(1, 1, 2))),
    (RuntimeError, "projections.*MPS", lambda: nn.LSTM(4, 4, proj_size=2, device="mps")(on(1, 1, 4))),
    (RuntimeError, "pinned", lambda: on(2, pin_memory=True)),
    (RuntimeError, "one mps device", lambda: torch.ones(2).to("mps:1")),
    (RuntimeError, "Expected a 'mps'.*generator", lambda: torch.rand(2, device="mps", generator=torch.Generator())),
    (RuntimeError, "DispatchStub: missing kernel for mps", lambda: torch.kaiser_window(5, device="mps")),
    (RuntimeError, "'aten::_weight_int4pack_mm'.*hardware", lambda: WEIGHT_PACKED(on(2, 2), on(2), 32, None)),
    (RuntimeError, "different device", lambda: torch.zeros(2, device="mps").set_(torch.ones(2).untyped_storage())),
    (TypeError, "can't convert mps:0 device type tensor to numpy", lambda: on(2).numpy()),
    (NotImplementedError, "simulated mps device.*aot_eager", lambda: torch.mps.compile_shader("kernel void f() {}")),
    (NotImplementedError, "'aten::multi_margin_loss' is not currently implemented for the MPS dev", margin_loss),
    (NotImplementedError, "", lambda: on(2, 2).to_sparse()),
    (NotImplementedError, "", lambda: torch.sparse_coo_tensor([[0]], [1.0], device="mps", check_invariants=False)),
    (NotImplementedError, "", lambda: torch.quantize_per_tensor(on(2), 0.1, 0, torch.quint8)),
    *((RuntimeError, PINNED, pin) for pin in PINS if installed_torch() < (2, 14)),
]


@pytest.mark.parametrize(("error", "text", "compute"), REFUSED)
def test_what_hardware_refuses_is_refused_with_its_text(mps, error, text, compute):
    with pytest.raises(error, match=text):
        compute()
    assert mps.report().fell_back == ()


def test_fallback_runs_on_the_cpu_and_warns_once_per_operator_at_the_line_of_the_call(mps_with_fallback):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first, second = margin_loss(), margin_loss()
        torch.mode(on(2, 2))
    assert torch.equal(first.cpu(), second.cpu())
    assert first.device.type == "mps"
    fell_back = [warning for warning in caught if "MPS backend" in str(warning.message)]
    assert [str(warning.message).split("'")[1] for warning in fell_back] == ["aten::multi_margin_loss", "aten::mode"]
    assert fell_back[0].category is UserWarning
    assert fell_back[1].filename == __file__
    fallen = {each.name: each.calls for each in mps_with_fallback.report().fell_back}
    assert fallen == {"aten::multi_margin_loss": 2, "aten::mode": 1}


def test_fallback_takes_tensors_of_both_devices(mps_with_fallback):
    scores = torch.eye(2)
    with pytest.warns(UserWarning, match="multi_margin_loss"):
        loss = nn.functional.multi_margin_loss(scores.to("mps"), torch.tensor([0, 1]))
    assert torch.equal(loss.cpu(), nn.functional.multi_margin_loss(scores, torch.tensor([0, 1])))


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


def test_custom_operators_for_the_cpu_are_refused_and_those_made_of_others_run(mps, custom):
    for operator in (custom.twice, custom.first):
        assert "simulator_tests::" in refusal(operator, on(2), kind=NotImplementedError)
    assert custom.sum_composite(on(2)).item() == 3


def test_custom_operators_for_the_cpu_fall_back_and_views_are_copies(mps_with_fallback, custom):
    with pytest.warns(UserWarning, match="simulator_tests::twice"):
        assert custom.twice(on(2)).tolist() == [2, 2]
    tensor = on(2, 2)
    with pytest.warns(UserWarning, match="simulator_tests::first"):
        custom.first(tensor).zero_()
    assert tensor.tolist() == [[1, 1], [1, 1]]


def test_second_device_at_once_is_refused(mps):
    for begin in (simulated_mps().__enter__, activate):
        assert "already active" in refusal(begin)
    assert on(1).item() == 1  # and the first one goes on


@pytest.mark.parametrize("memory", ["", "much", "16", "0B", "-1GB", "16XB", 0])
def test_bad_amount_of_memory_is_refused(memory):
    assert "is not an amount of memory" in refusal(simulated_mps(memory=memory).__enter__)
