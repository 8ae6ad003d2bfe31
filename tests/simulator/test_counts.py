"""The device counts the calls that cost time on hardware, and its report names their lines."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from torch import nn

from mps_trainer.simulator import SimulatedMPS
from tests.check.waits import FREE, WAITING, Given


def calls(device: SimulatedMPS) -> dict[str, int]:
    return {operator.name: operator.calls for operator in device.report().operators}


# A tensor of the device has no values for NumPy and is printed by several reads, and one case waits twice.
OTHERWISE = (".numpy()", "numpy.asarray()", "repr()", "format()", "put tensors where a mask says")
# The device counts the copies of indices and values that are on the host.
OF_THE_HOST = ("index with a list", "put a tensor of the host where a mask says")


@pytest.mark.parametrize("how", [how for how in WAITING if how not in OTHERWISE])
def test_waiting_for_the_device_is_one_blocking_read(mps, how):
    given = Given("mps")
    mps.reset()
    WAITING[how](given)
    assert mps.report().blocking_reads == 1


@pytest.mark.parametrize("how", [how for how in FREE if how not in OF_THE_HOST])
def test_work_that_stays_on_the_device_blocks_nothing(mps, how):
    given = Given("mps")
    mps.reset()
    FREE[how](given)
    assert mps.report().blocking_reads == 0


def test_copies_are_counted_each_way(mps):
    tensor = torch.ones(3, 4).to("mps")
    torch.tensor([1, 2], device="mps")
    tensor.copy_(torch.zeros(3, 4))
    tensor.cpu()
    tensor[0, 0].item()
    report = mps.report()
    assert (report.host_to_device, report.host_to_device_bytes) == (3, 48 + 16 + 48)
    assert (report.device_to_host, report.device_to_host_bytes) == (2, 48 + 4)


def test_operators_are_counted_by_name_and_views_are_none(mps):
    tensor = torch.zeros(4, 4, device="mps")
    mps.reset()
    for _ in range(3):
        tensor.add(1)
    tensor.view(16).view(2, 8).t()[0].expand(3, 2).detach()
    torch.empty(3, device="mps")
    assert calls(mps) == {"aten::add.Tensor": 3}


def test_composite_operators_count_as_what_they_are_made_of(mps):
    layer = nn.Linear(3, 2, device="mps")
    x = torch.ones(4, 3, device="mps")
    mps.reset()
    layer(x).sum().backward()
    names = calls(mps)
    assert names["aten::linear"] == names["aten::linear_backward"] == 1
    assert "aten::matmul" not in names


def counted(device: SimulatedMPS, name: str) -> tuple[int, int]:
    (operator,) = (operator for operator in device.report().operators if operator.name == f"aten::{name}")
    return operator.calls, operator.graphs


def squares(size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(size, size, device="mps", dtype=dtype)


def test_each_new_shape_of_a_product_is_a_graph(mps):
    for size in (3, 4, 3, 4, 3):
        squares(size).mm(squares(size))
    squares(3, torch.float16).mm(squares(3, torch.float16))
    assert counted(mps, "mm") == (6, 3)


def test_an_operator_with_a_metal_kernel_compiles_no_graph(mps):
    for size in (3, 4):
        squares(size).mul_(2)
    assert counted(mps, "mul_.Tensor") == (2, 0)


def test_emptying_the_cache_drops_the_graphs_and_the_accelerator_s_does_not(mps):
    def graphs() -> int:
        squares(3).mm(squares(3))
        return mps.report().graphs

    assert graphs() == graphs() == 1
    torch.accelerator.empty_cache()
    assert graphs() == 1
    torch.mps.empty_cache()
    assert graphs() == 2
    assert mps.report().synchronizations == 2


def test_report_names_the_line_that_waits(mps):
    tensor = torch.ones(3, device="mps")
    for _ in range(2):
        tensor.sum().item()  # this line
    (place,) = mps.report().places
    assert (place.kind, place.operator, place.count, place.file) == ("read", "aten::_local_scalar_dense", 2, __file__)
    assert place.source == "tensor.sum().item()  # this line"


class ReadsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * gradient.sum().item()


def test_reads_in_backward_are_counted(mps):
    x = torch.ones(2, device="mps", requires_grad=True)
    ReadsInBackward.apply(x).sum().backward()
    assert mps.report().blocking_reads == 1
    assert mps.report().places[0].source == "return gradient * gradient.sum().item()"


def test_fallback_is_counted_with_its_copies(mps_with_fallback):
    matrix = torch.eye(2, device="mps")
    mps_with_fallback.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.mode(matrix)
    report = mps_with_fallback.report()
    (fallen,) = report.fell_back
    assert (fallen.name, fallen.calls, fallen.fell_back) == ("aten::mode", 1, True)
    assert (report.host_to_device, report.device_to_host, report.blocking_reads) == (
        2,
        1,
        1,
    )  # values and indices come back
    assert [place.kind for place in report.places] == ["fallback"]


def test_table_shows_what_was_counted(mps):
    torch.eye(3).to("mps", non_blocking=True).mm(squares(3)).sum().item()
    text = str(mps.report())
    assert "blocking reads                     1" in text
    assert "copies to the device               1 36 bytes" in text
    assert "graphs compiled                    1" in text
    assert "       1  aten::mm, once" in text
    assert all(len(line) <= 124 for line in text.splitlines())


class ListenerError(Exception):
    pass


def test_exception_while_a_read_is_reported_reaches_the_caller(mps):
    """Ctrl-C may arrive there."""

    def fail(kind: str, operator: str) -> None:
        raise ListenerError

    x = torch.ones(2, device="mps", requires_grad=True)
    mps._extension.set_listener(fail)
    with pytest.raises(ListenerError):
        x.sum().item()
    with pytest.raises(ListenerError):
        x.cpu()
    with pytest.raises(ListenerError):
        ReadsInBackward.apply(x).sum().backward()  # raised in the thread that runs backward
    mps._extension.set_listener(None)
    assert x.sum().item() == 2


def test_warning_turned_into_an_error_stops_the_fallback(mps_with_fallback):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="mode"):
            torch.mode(torch.eye(2, device="mps"))


def test_threads_can_read_at_the_same_time(mps):
    from concurrent.futures import ThreadPoolExecutor

    tensors = [torch.full((2,), float(i), device="mps", requires_grad=True) for i in range(4)]

    def work(tensor: torch.Tensor) -> float:
        for _ in range(20):
            ReadsInBackward.apply(tensor).sum().backward()
        return tensor.sum().item()

    mps.reset()
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, tensors)) == [0, 2, 4, 6]
    assert mps.report().blocking_reads == 4 * 21


def test_totals_are_in_the_data(mps):
    squares(3).mm(squares(3)).add(1).add(1)
    data = json.loads(json.dumps(mps.report().to_dict()))
    assert data["operator_calls"] == sum(operator["calls"] for operator in data["operators"])
    assert data["graphs"] == sum(operator["graphs"] for operator in data["operators"]) == 1
