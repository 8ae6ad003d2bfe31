"""The device counts the calls that cost time on hardware, and its report names their lines."""

import json
import warnings
from unittest import mock

import pytest
import torch
from torch import nn

from tests.check.waits import FREE, WAITING, Given

# A tensor of the device is printed by several reads, and one case waits twice.
OTHERWISE = ("repr()", "format()", "put tensors where a mask says")
# The device counts the copies of indices and values that are on the host.
OF_THE_HOST = ("index with a list", "put a tensor of the host where a mask says")


@pytest.mark.parametrize("how", [how for how in (*WAITING, *FREE) if how not in (*OTHERWISE, *OF_THE_HOST)])
def test_waiting_for_the_device_is_one_blocking_read_and_other_work_none(mps, how):
    given = Given("mps")
    mps.reset()
    {**WAITING, **FREE}[how](given)
    assert mps.report().blocking_reads == (how in WAITING)


def test_copies_are_counted_each_way(mps):
    tensor = torch.ones(3, 4).to("mps")
    torch.tensor([1, 2], device="mps")
    tensor.copy_(torch.zeros(3, 4))
    tensor.cpu()
    tensor[0, 0].item()
    report = mps.report()
    assert (report.host_to_device, report.host_to_device_bytes) == (3, 48 + 16 + 48)
    assert (report.device_to_host, report.device_to_host_bytes) == (2, 48 + 4)


def squares(size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(size, size, device="mps", dtype=dtype)


def test_operators_and_graphs_are_counted_by_name_and_views_are_none(mps):
    layer, x = nn.Linear(3, 2, device="mps"), torch.ones(4, 3, device="mps")
    mps.reset()
    torch.empty(4, 4, device="mps").view(16).view(2, 8).t()[0].expand(3, 2).detach()
    for size in (3, 4, 3, 4, 3):
        squares(size).mm(squares(size)).mul_(2)
    squares(3, torch.float16).mm(squares(3, torch.float16))
    layer(x).sum().backward()
    found = {each.name.removeprefix("aten::"): (each.calls, each.graphs) for each in mps.report().operators}
    assert found["mm"] == (6, 3)  # a graph for each new shape
    assert found["mul_.Tensor"] == (5, 0)  # it has a Metal kernel
    assert found["linear"][0] == found["linear_backward"][0] == 1
    assert not {"view", "t", "expand", "detach", "empty.memory_format", "matmul"} & found.keys()
    data = json.loads(json.dumps(mps.report().to_dict()))
    assert data["operator_calls"] == sum(operator["calls"] for operator in data["operators"])
    assert data["graphs"] == sum(operator["graphs"] for operator in data["operators"])


def test_report_names_the_line_that_waits_in_backward_too(mps):
    tensor = torch.ones(3, device="mps", requires_grad=True)
    for _ in range(2):
        tensor.sum().item()  # this line
    (place,) = mps.report().places
    assert (place.kind, place.operator, place.count, place.file) == ("read", "aten::_local_scalar_dense", 2, __file__)
    assert place.source == "tensor.sum().item()  # this line"
    mps.reset()
    ReadsInBackward.apply(tensor).sum().backward()
    assert mps.report().blocking_reads == 1
    assert mps.report().places[0].source == "return gradient * gradient.sum().item()"


class ReadsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * gradient.sum().item()


def test_fallback_is_counted_with_its_copies_unless_its_warning_is_an_error(mps_with_fallback):
    matrix = torch.eye(2, device="mps")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="mode"):
            torch.mode(matrix)
        mps_with_fallback.reset()
        warnings.simplefilter("ignore")
        torch.mode(matrix)
    report = mps_with_fallback.report()
    (fallen,) = report.fell_back
    assert (fallen.name, fallen.calls, fallen.fell_back) == ("aten::mode", 1, True)
    # values and indices come back
    assert (report.host_to_device, report.device_to_host, report.blocking_reads) == (2, 1, 1)
    assert [place.kind for place in report.places] == ["fallback"]


def test_table_shows_what_was_counted(mps):
    torch.eye(3).to("mps", non_blocking=True).mm(squares(3)).sum().item()
    text = str(mps.report())
    assert "blocking reads                     1" in text
    assert "copies to the device               1 36 bytes" in text
    assert "graphs compiled                    1" in text
    assert "       1  aten::mm, once" in text
    assert all(len(line) <= 124 for line in text.splitlines())


def test_exception_while_a_read_is_reported_reaches_the_caller(mps):
    """Ctrl-C may arrive there."""

    x = torch.ones(2, device="mps", requires_grad=True)
    reads = [x.sum().item, x.cpu, ReadsInBackward.apply(x).sum().backward]  # the last in the thread of backward
    mps._extension.set_listener(mock.Mock(side_effect=KeyboardInterrupt))
    for read in reads:
        with pytest.raises(KeyboardInterrupt):
            read()
    mps._extension.set_listener(None)
    assert x.sum().item() == 2


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
