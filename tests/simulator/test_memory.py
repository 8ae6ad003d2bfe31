"""Memory is counted and limited, so that what runs out of it on a small Mac does so here."""

import gc
import re

import pytest
import torch

from mps_trainer.simulator import simulated_mps
from mps_trainer.tools.simulator.memory_limit import parse_bytes
from tests import installed_torch
from tests.conftest import on_device, refusal

MIB = 2**20
SPLITS_AND_JOINS = installed_torch() >= (2, 14)
from_2_14 = pytest.mark.skipif(not SPLITS_AND_JOINS, reason="the allocator of torch from 2.14 on")
HEAP_OF_901 = 912 if SPLITS_AND_JOINS else 902  # large sizes are rounded up to 32 for each doubling, or to 2 MiB


@pytest.fixture
def small():
    with on_device("mps", memory="1MB") as device:
        yield device


def test_live_and_peak_bytes_follow_allocations_and_not_views(mps):
    gc.collect()
    mps.reset()
    before = mps.report().bytes_live
    tensor = torch.empty(1000, device="mps")
    view = tensor.view(10, 100).t()[1:]
    assert mps.report().bytes_live - before == tensor.nbytes
    del tensor, view
    other = torch.empty(10, device="mps") + 1
    report = mps.report()
    assert report.bytes_live - before == other.nbytes
    assert report.bytes_peak - before == 4000
    mps.reset()
    assert mps.report().bytes_peak == mps.report().bytes_live


def test_allocation_past_the_maximum_is_refused(small):
    tensor = of(0.5)
    said = refusal(of, 1, kind=RuntimeError)
    assert re.search(r"MPS backend out of memory \(MPS allocated: .*max allowed: 1.00 MiB\)", said)
    assert of(0.25).nbytes  # the refused one is not charged
    del tensor


@pytest.mark.parametrize(
    "grow",
    [
        lambda tensor: torch.ones(MIB).to("mps"),
        lambda tensor: tensor.expand(2 * MIB).clone(),
        lambda tensor: tensor.expand(MIB) + 1,
        lambda tensor: torch.add(tensor.expand(MIB), 1, out=torch.empty(0, device="mps")),
        lambda tensor: tensor.clone().resize_(MIB),
    ],
)
def test_every_way_to_take_memory_is_limited(small, grow):
    live = small.counters()["bytes_live"]
    tensor = torch.ones(1, device="mps")
    assert "MPS backend out of memory" in refusal(grow, tensor, kind=RuntimeError)
    del tensor
    gc.collect()
    assert small.counters()["bytes_live"] == live


def test_torch_reports_the_memory(small):
    tensor = torch.empty(1000, device="mps")
    live = small.counters()["bytes_live"]
    assert torch.mps.current_allocated_memory() == live >= tensor.nbytes
    assert torch.mps.recommended_max_memory() == MIB
    assert torch.accelerator.memory_allocated() == live
    assert torch.accelerator.max_memory_allocated() >= live
    assert torch.accelerator.get_memory_info() == (MIB - live, MIB)
    torch.mps.empty_cache()
    torch.accelerator.empty_cache()
    assert small.report().synchronizations == 2
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == live


@pytest.fixture
def held():
    """Returns a function that gives the MiB on the device, without those that earlier tests left there."""
    with on_device("mps", memory="4GB") as device:
        torch.mps.empty_cache()  # memory in the pool would be used again
        others = fill_heaps(device)
        before = device.counters()["bytes_held"]
        yield lambda: (device.counters()["bytes_held"] - before) / MIB
        del others


def fill_heaps(device):
    """Takes the room beside tensors that are still alive somewhere, which would be used before a new heap."""
    taken = []
    for mib in (0.5, 10, 1.5):  # small heaps, and the large ones from the largest tensor down
        full = device.counters()["bytes_held"]
        while True:
            tensor = of(mib)
            if device.counters()["bytes_held"] > full:
                break
            taken.append(tensor)
        del tensor
        torch.mps.empty_cache()
    return taken


def of(mib):
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="mps")


def test_memory_is_taken_in_heaps_and_kept_until_the_cache_is_emptied(held):
    small = [of(0.5), of(0.5)]
    assert held() == 8
    large = [of(3), of(9), of(9), of(9)]
    assert held() == 8 + 32
    large.append(of(4))
    assert held() == 8 + 32 + 32
    huge = [of(12), of(200)]
    assert held() == 8 + 32 + 32 + 1024
    own = of(901)
    assert held() == 8 + 32 + 32 + 1024 + HEAP_OF_901
    del own, huge, large, small[0]
    assert held() == 8 + 32 + 32 + 1024 + HEAP_OF_901
    torch.mps.empty_cache()
    assert held() == 8  # half a mebibyte is in use
    small.clear()
    torch.accelerator.empty_cache()
    assert held() == 0


def test_ever_larger_tensors_take_the_place_of_the_smaller_ones_from_torch_2_14_on(held):
    for step in range(40):
        of(5 + step / 10)
    assert held() == 32 if SPLITS_AND_JOINS else held() > 150
    torch.mps.empty_cache()
    assert held() == 0


@from_2_14
def test_a_free_block_is_split_and_its_parts_are_joined_again(held):
    first = of(1000)
    del first
    parts = [of(100) for _ in range(9)]
    assert held() == 1008  # 1000 MiB are rounded up
    del parts[::2]
    between = [of(99) for _ in range(5)]
    assert held() == 1008
    del parts, between
    whole = of(900)
    assert held() == 1008
    del whole


@from_2_14
def test_a_block_in_use_keeps_its_neighbours_apart_and_its_heap(held):
    parts = [of(100) for _ in range(10)]
    assert held() == 1024
    kept = parts[5]
    del parts
    torch.mps.empty_cache()
    larger = of(600)
    assert held() == 1024 + 608
    del kept, larger
    torch.mps.empty_cache()
    assert held() == 0


def test_a_large_buffer_is_not_kept_for_something_much_smaller(held):
    of(100)
    kept = [of(11) for _ in range(20)]  # its heap has room beside it
    assert held() == 1024
    del kept


def test_what_is_kept_is_given_back_before_memory_runs_out():
    with on_device("mps", memory="64MB") as device:
        for step in range(40):
            of(5 + step / 10)
        assert device.counters()["bytes_held"] <= 96 * MIB


def test_watermark_of_the_environment_is_heeded(built, monkeypatch):
    monkeypatch.setenv("PYTORCH_MPS_HIGH_WATERMARK_RATIO", "0.0")
    with simulated_mps(memory="1MB"):
        of(3)  # no limit
    monkeypatch.setenv("PYTORCH_MPS_HIGH_WATERMARK_RATIO", "2.5")
    assert "PYTORCH_MPS_HIGH_WATERMARK_RATIO is '2.5'" in refusal(simulated_mps().__enter__)
    monkeypatch.delenv("PYTORCH_MPS_HIGH_WATERMARK_RATIO")
    with simulated_mps():  # the refusal left nothing switched on
        pass


@pytest.mark.parametrize(
    ("text", "size"),
    [("16GB", 16 * 2**30), ("512 MiB", 512 * MIB), ("1.5g", 3 * 2**29), (7, 7), ("2k", 2048), (" 3 B", 3)],
)
def test_amounts_are_read_as_people_write_them(text, size):
    assert parse_bytes(text) == size
