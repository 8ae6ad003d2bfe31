"""Tensors live on the device and behave as they do on any other."""

from __future__ import annotations

import gc

import pytest
import torch

from mps_trainer.simulator import simulated_mps
from tests import installed_torch


def test_machine_looks_like_a_mac_inside_the_block_only(built):
    assert not torch.backends.mps.is_available()
    with simulated_mps():
        assert torch.backends.mps.is_available()
        assert torch.backends.mps.is_built()
        assert torch.mps.is_available()
        assert torch.mps.device_count() == 1
        assert torch.accelerator.current_accelerator() == torch.device("mps")
        assert torch.accelerator.device_count() == 1
        assert torch.get_default_device() == torch.device("cpu")
    assert not torch.backends.mps.is_available()
    assert not torch.mps.is_available()
    assert torch.accelerator.current_accelerator() is None


def test_tensors_cannot_be_made_outside_the_block(mps):
    with simulated_mps_switched_off(mps), pytest.raises(RuntimeError, match="switched off"):
        torch.ones(2, device="mps")
    assert torch.ones(2, device="mps").sum() == 2


class simulated_mps_switched_off:
    def __init__(self, device):
        self.extension = device._extension

    def __enter__(self):
        self.extension.set_active(False)

    def __exit__(self, *_):
        self.extension.set_active(True)


def test_tensor_knows_its_device(mps):
    tensor = torch.arange(6.0, device="mps").view(2, 3)
    assert tensor.is_mps
    assert tensor.device == torch.device("mps:0")
    assert (tensor.get_device(), tensor.type()) == (0, "torch.mps.FloatTensor")
    assert tensor.t().device == tensor.to(torch.int8).device == tensor[0].device == torch.device("mps:0")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1.5, 2.0], "tensor([1.5000, 2.0000], device='mps:0')"),
        ([1, 2], "tensor([1, 2], device='mps:0')"),
        ([True, False], "tensor([ True, False], device='mps:0')"),
        ([1 + 2j], "tensor([1.+2.j], device='mps:0')"),
        ([], "tensor([], device='mps:0')"),
    ],
)
def test_tensor_is_printed(mps, values, text):
    assert repr(torch.tensor(values, device="mps")) == text


def test_write_through_a_view_reaches_the_whole(mps):
    tensor = torch.zeros(3, 4, device="mps")
    tensor[:, 1].add_(1)
    tensor.t()[2] = 5
    tensor.as_strided((2,), (5,)).fill_(7)
    assert tensor.tolist() == [[7, 1, 5, 0], [0, 7, 5, 0], [0, 1, 5, 0]]


def test_resizing_keeps_what_was_there(mps):
    tensor = torch.tensor([1.0, 2.0], device="mps").resize_(4)
    assert tensor.shape == (4,)
    assert tensor[:2].tolist() == [1, 2]


def test_storage_can_be_replaced(mps):
    tensor, other = torch.zeros(2, device="mps"), torch.ones(3, device="mps")
    tensor.set_(other)
    other.add_(1)
    assert tensor.tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="different device"):
        tensor.set_(torch.ones(2).untyped_storage())


def test_numbers_of_the_cpu_mix_with_tensors(mps):
    tensor = torch.ones(3, device="mps") * torch.tensor(2.0) + torch.tensor(1)
    assert tensor.device.type == "mps"
    assert tensor.tolist() == [3, 3, 3]
    assert torch.where(tensor > 0, tensor, torch.tensor(0.0)).tolist() == [3, 3, 3]


def test_indices_may_be_on_the_cpu(mps):
    tensor = torch.arange(4.0, device="mps")
    assert tensor[torch.tensor([3, 0])].tolist() == [3, 0]
    assert tensor[torch.tensor([True, False, True, False])].tolist() == [0, 2]


def test_complex_and_conjugated_tensors_compute(mps):
    values = torch.tensor([[1 + 2j, 3 - 1j], [0 + 1j, 2 + 0j]])
    on_device = values.to("mps")
    assert on_device.conj().is_conj()
    assert torch.equal((on_device.conj() @ on_device).cpu(), values.conj() @ values)
    assert torch.equal(on_device.conj().imag.cpu(), values.conj().imag)
    assert torch.equal(on_device.clone().conj_physical_().cpu(), values.conj())


def test_gradient_known_to_be_zero_is_a_tensor_of_zeros(mps):
    tensor = torch.ones(3, device="mps", requires_grad=True)
    torch.sgn(tensor).sum().backward()
    assert tensor.grad.cpu().tolist() == [0, 0, 0]
    assert (tensor.grad + 1).tolist() == [1, 1, 1]
    assert torch.dot(torch._efficientzerotensor(3, device="mps"), tensor).item() == 0


def test_events_measure_time(mps):
    for make in (torch.mps.Event, lambda enable_timing: torch.Event("mps", enable_timing=enable_timing)):
        start, end = make(enable_timing=True), make(enable_timing=True)
        start.record()
        torch.ones(200, 200, device="mps") @ torch.ones(200, 200, device="mps")
        end.record()
        end.synchronize()
        assert end.query()
        assert start.elapsed_time(end) > 0


def test_numpy_needs_a_copy_on_the_host(mps):
    with pytest.raises(TypeError, match="can't convert mps:0 device type tensor to numpy"):
        torch.ones(2, device="mps").numpy()
    assert torch.ones(2, device="mps").cpu().numpy().tolist() == [1, 1]


def test_function_transforms_work(mps):
    tensor = torch.arange(6.0, device="mps").view(2, 3)
    assert torch.func.vmap(torch.dot)(tensor, tensor).tolist() == [5, 50]
    assert torch.func.grad(lambda x: (x**2).sum())(tensor).tolist() == (2 * tensor).tolist()
    assert torch.func.vmap(torch.func.grad(lambda x: (x**3).sum()))(tensor).device.type == "mps"
    assert torch.func.jacrev(torch.sin)(tensor[0]).shape == (3, 3)


def test_compiled_function_runs_with_a_backend_that_needs_no_metal(mps):
    compiled = torch.compile(lambda x: x.sin() + 1, backend="aot_eager")
    tensor = torch.ones(3, device="mps", requires_grad=True)
    compiled(tensor).sum().backward()
    assert torch.equal(tensor.grad.cpu(), torch.ones(3).cos())


def test_compiling_for_metal_says_what_to_do(mps):
    with pytest.raises(NotImplementedError, match=r"simulated mps device.*aot_eager"):
        torch.mps.compile_shader("kernel void nothing() {}")


@pytest.mark.skipif(installed_torch() < (2, 14), reason="there is pinned memory from torch 2.14 on")
def test_pinned_memory_is_memory_of_the_host(mps):
    gc.collect()  # tensors of earlier tests
    before = mps.report().bytes_live
    for pinned in (torch.ones(2).pin_memory(), torch.ones(2, pin_memory=True)):
        assert (pinned.device.type, pinned.is_pinned()) == ("cpu", True)
        assert pinned.to("mps", non_blocking=True).tolist() == [1.0, 1.0]
    del pinned
    assert not torch.ones(2).is_pinned()
    assert mps.report().bytes_live == before


def test_result_may_be_written_into_a_view(mps):
    whole = torch.zeros(2, 4, device="mps")
    torch.add(torch.ones(2, 2, device="mps"), 1, out=whole[:, ::2])
    assert whole.tolist() == [[2, 0, 2, 0], [2, 0, 2, 0]]


def test_parameters_move_in_place(mps):
    layer = torch.nn.Linear(2, 2)
    weight = layer.weight
    assert layer.to("mps").weight is weight
    assert weight.is_mps
    assert not layer.cpu().weight.is_mps
