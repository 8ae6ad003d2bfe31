"""Tensors live on the device, behave as they do on any other, and can be saved and loaded."""

import gc
import io

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from mps_trainer.simulator import simulated_mps
from tests import installed_torch
from tests.conftest import assert_same_weights, refusal


def test_machine_looks_like_a_mac_inside_the_block_only(built):
    def seen():
        accelerator = torch.accelerator.current_accelerator()
        return torch.backends.mps.is_available(), torch.mps.is_available(), accelerator and accelerator.type

    assert seen() == (False, False, None)
    with simulated_mps():
        assert seen() == (True, True, "mps")
        assert torch.backends.mps.is_built()
        assert torch.mps.device_count() == torch.accelerator.device_count() == 1
        assert torch.get_default_device() == torch.device("cpu")
    assert seen() == (False, False, None)
    assert "__new__" not in vars(torch.UntypedStorage)
    assert torch.UntypedStorage(4).nbytes() == 4


def test_tensors_cannot_be_made_outside_the_block(mps):
    mps._extension.set_active(False)
    try:
        assert "switched off" in refusal(torch.ones, 2, device="mps", kind=RuntimeError)
    finally:
        mps._extension.set_active(True)
    assert torch.ones(2, device="mps").sum() == 2


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1.5, 2.0], "tensor([1.5000, 2.0000], device='mps:0')"),
        ([1 + 2j], "tensor([1.+2.j], device='mps:0')"),
        ([], "tensor([], device='mps:0')"),
    ],
)
def test_tensor_is_printed_and_knows_its_device(mps, values, text):
    tensor = torch.tensor(values, device="mps")
    assert repr(tensor) == text
    assert (tensor.get_device(), tensor.type()[:10]) == (0, "torch.mps.")


def written_through_views(on):
    tensor = on(torch.zeros(3, 4))
    tensor[:, 1].add_(1)
    tensor.t()[2] = 5
    tensor.as_strided((2,), (5,)).fill_(7)
    return tensor


def with_the_storage_of_another(on):
    tensor, other = on(torch.zeros(2)), on(torch.ones(3))
    tensor.set_(other)
    other.add_(1)
    return tensor


def written_into_a_view(on):
    whole = on(torch.zeros(2, 4))
    torch.add(on(torch.ones(2, 2)), 1, out=whole[:, ::2])
    return whole


def gradient(function, *sizes):
    def computed(on):
        tensor = on(torch.ones(*sizes)).requires_grad_()
        function(tensor).sum().backward()
        return tensor.grad

    return computed


SIX = torch.arange(6.0).view(2, 3)
COMPLEX = torch.tensor([[1 + 2j, 3 - 1j], [0 + 1j, 2 + 0j]])
# Computations, given a function that moves a tensor to the device of the test.
COMPUTED = {
    "writes through views": written_through_views,
    "storage of another": with_the_storage_of_another,
    "out= of a view": written_into_a_view,
    "resized": lambda on: on(torch.tensor([1.0, 2.0])).resize_(4)[:2],
    "numbers of the CPU": lambda on: on(torch.ones(3)) * torch.tensor(2.0) + torch.tensor(1),
    "a number of the CPU in where": lambda on: torch.where(on(SIX) > 2, on(SIX), torch.tensor(0.0)),
    "indices on the CPU": lambda on: on(SIX)[torch.tensor([1, 0])],
    "a mask on the CPU": lambda on: on(SIX)[torch.tensor([True, False])],
    "a product with a conjugate": lambda on: on(COMPLEX).conj() @ on(COMPLEX),
    "imaginary parts of a conjugate": lambda on: on(COMPLEX).conj().imag,
    "conjugated in place": lambda on: on(COMPLEX).clone().conj_physical_(),
    "a gradient known to be zero": gradient(torch.sgn, 3),
    "sum with it": lambda on: gradient(torch.sgn, 3)(on) + 1,
    "vmap": lambda on: torch.func.vmap(torch.dot)(on(SIX), on(SIX)),
    "grad": lambda on: torch.func.grad(lambda x: (x**2).sum())(on(SIX)),
    "compiled without Metal": gradient(torch.compile(lambda x: x.sin() + 1, backend="aot_eager"), 3),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_computations_equal_those_of_the_cpu(mps, name):
    found = COMPUTED[name](lambda tensor: tensor.to("mps", copy=True))
    assert found.is_mps
    assert torch.equal(found.cpu(), COMPUTED[name](torch.clone))


def test_zeros_without_memory_and_conjugates_stay_lazy(mps):
    assert torch.dot(torch._efficientzerotensor(3, device="mps"), torch.ones(3, device="mps")).item() == 0
    assert COMPLEX.to("mps").conj().is_conj()


@pytest.mark.parametrize("make", [torch.mps.Event, lambda **settings: torch.Event("mps", **settings)])
def test_events_measure_time(mps, make):
    start, end = make(enable_timing=True), make(enable_timing=True)
    start.record()
    torch.ones(200, 200, device="mps") @ torch.ones(200, 200, device="mps")
    end.record()
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) > 0


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


def test_parameters_move_in_place(mps):
    layer = nn.Linear(2, 2)
    weight = layer.weight
    assert layer.to("mps").weight is weight
    assert weight.is_mps
    assert not layer.cpu().weight.is_mps


def loaded(what: object, **settings: object):
    torch.save(what, file := io.BytesIO())
    file.seek(0)
    return torch.load(file, **settings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_tensor_comes_back_on_the_device(mps, dtype):
    tensor = torch.tensor([[1, 0], [2, 3]], device="mps").to(dtype)
    found = loaded({"tensor": tensor})["tensor"]
    assert (found.device, found.dtype) == (torch.device("mps:0"), dtype)
    assert torch.equal(found, tensor)


@pytest.mark.parametrize("where", ["cpu", torch.device("cpu"), {"mps": "cpu"}, lambda storage, _: storage])
def test_tensor_is_loaded_where_asked_for(mps, where):
    assert loaded(torch.ones(2, device="mps"), map_location=where).device.type == "cpu"
    from_cpu = loaded(torch.ones(2), map_location="mps")
    assert (from_cpu.is_mps, from_cpu.tolist()) == (True, [1, 1])


def test_views_of_one_memory_stay_so(mps):
    whole = torch.zeros(2, 2, device="mps")
    whole, row = loaded([whole, whole[0]])
    row.fill_(1)
    assert whole.tolist() == [[1, 1], [0, 0]]


def test_storages_are_made_and_copied(mps):
    storage = torch.arange(3, dtype=torch.uint8, device="mps").untyped_storage()
    assert storage.clone().device.type == storage.cpu().mps().device.type == "mps"
    assert storage.cpu().tolist() == storage.clone().tolist() == [0, 1, 2]
    assert torch.UntypedStorage(4, device="mps").nbytes() == 4
    assert torch.UntypedStorage(device="mps").nbytes() == 0
    assert torch.UntypedStorage(4).device.type == "cpu"
    assert torch.UntypedStorage([1, 2]).tolist() == [1, 2]


def test_safetensors_are_saved_and_loaded(mps, tmp_path):
    path = tmp_path / "weights.safetensors"
    layer = nn.Linear(3, 2, device="mps")
    save_file(layer.state_dict(), path)
    on_device = load_file(path, device="mps")
    assert {tensor.device.type for tensor in on_device.values()} == {"mps"}
    assert_same_weights(dict(layer.state_dict()), on_device)
    assert_same_weights(dict(nn.Module.state_dict(layer.cpu())), load_file(path))
