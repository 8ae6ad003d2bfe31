"""Each known fault has a reproducer, which finds nothing on a device that works, and the fault on one that has it."""

from __future__ import annotations

import subprocess

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mps_trainer.devices.known_faults import KNOWN_FAULTS
from mps_trainer.selftest import faults, reproducers
from mps_trainer.selftest.reproducers import GIB, REPRODUCERS
from mps_trainer.selftest.results import CheckSkipped

CHECK = "known faults"
ATTENTION = "_scaled_dot_product_attention_math_for_mps"
# Which operator of the device is broken to show each.
BROKEN = {
    177116: "mm",
    195163: "bmm",
    180776: "linear",
    192934: "linear",
    161640: "linear",
    163597: ATTENTION,
    165257: "uniform_",
    174861: ATTENTION,
    170360: "sum",
    176767: ATTENTION,
    183825: "native_layer_norm_backward",
    191976: "native_layer_norm",
    180201: "linear_backward",
    187521: "baddbmm",
    195910: ATTENTION,
    197796: "linear",
    195404: "embedding_dense_backward",
    190056: "lstm_mps_backward",
    188756: "embedding",
    184180: ATTENTION,
    197636: "bmm",
    194082: "any",
    189960: "cat",
    189495: "linear",
    192212: "convolution",
    175191: "scatter_",
    189565: "linear",
    190791: ATTENTION,
}
NEED_MEMORY = {188756: 5, 194082: 5, 189960: 5, 197636: 12}  # in GiB
NEVER_RUN = {193571, 3267}  # the GPU would have to fail


@pytest.fixture
def small(monkeypatch):
    """Lets counters overflow early, so that what needs gigabytes on a Mac runs here."""
    monkeypatch.setattr(reproducers, "needs_memory", lambda gib, device: None)
    monkeypatch.setattr(reproducers, "MOST_BATCHES", 2**4)
    monkeypatch.setattr(reproducers, "MOST_SIGNED", 2**14)
    monkeypatch.setattr(reproducers, "MOST_UNSIGNED", 2**16)


class Broken(TorchDispatchMode):
    """Inside, an operator of the device is off by a half and more, says no for yes, or loses in-place writes."""

    def __init__(self, operator: str, factor: float = 1.5) -> None:
        super().__init__()
        self.operator, self.factor = f"aten::{operator}", factor

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name != self.operator or not _on_device(args):
            return func(*args, **(kwargs or {}))
        if func._schema.name.endswith("_"):
            return args[0]
        result = func(*args, **(kwargs or {}))
        return torch.utils._pytree.tree_map_only(torch.Tensor, self.wrong, result)

    def wrong(self, tensor):
        return ~tensor if tensor.dtype is torch.bool else tensor * self.factor + (self.factor - 1)


def _on_device(args) -> bool:
    leaves = torch.utils._pytree.tree_leaves(args)
    return any(isinstance(value, torch.Tensor) and value.device.type == "mps" for value in leaves)


def test_each_fault_has_one():
    assert set(REPRODUCERS) == {fault.issue for fault in KNOWN_FAULTS}
    assert set(BROKEN) == set(REPRODUCERS) - {127676} - NEVER_RUN


@pytest.mark.every_device
@pytest.mark.parametrize("issue", [issue for issue in REPRODUCERS if issue not in NEVER_RUN])
def test_a_device_that_works_shows_none(device, issue, small):
    assert REPRODUCERS[issue](torch.device(device)) is None


@pytest.mark.parametrize("issue", BROKEN)
def test_a_device_that_has_the_fault_shows_it(mps, issue, small):
    with Broken(BROKEN[issue]):
        assert REPRODUCERS[issue](torch.device("mps"))


@pytest.mark.parametrize("issue", [177116, 195163])
def test_large_numbers_lie_behind_the_operands_for_a_kernel_that_reads_on(issue, monkeypatch):
    seen = []
    place = reproducers._before_large_numbers

    def remember(tensor, device):
        seen.append(place(tensor, device))
        return seen[-1]

    monkeypatch.setattr(reproducers, "_before_large_numbers", remember)
    assert REPRODUCERS[issue](torch.device("cpu")) is None
    for tensor in seen:
        behind = torch.as_strided(tensor, (1,), (1,), tensor.numel())
        assert float(behind) == 1e4


@pytest.mark.parametrize(
    ("issue", "lossy"),
    [
        (176767, lambda attended: torch.nn.functional.pad(attended, (0, 8))),  # as wide as the keys
        (190791, lambda attended: attended + 0.024 * attended.abs().max()),  # as much as its thread measured
    ],
)
def test_an_attention_that_is_wrong_as_its_thread_says_shows(mps, issue, lossy):
    class Lossy(Broken):
        def wrong(self, tensor):
            return lossy(tensor)

    with Lossy(ATTENTION):
        assert REPRODUCERS[issue](torch.device("mps"))


def test_a_counter_of_16_bits_that_overflows_shows(mps, small):
    """The last batch is written over the first, and its own place is left as it was."""

    class Overflowing(Broken):
        def wrong(self, tensor):
            return torch.cat([tensor[-1:], tensor[1:-1], torch.zeros_like(tensor[-1:])])

    with Overflowing("linear"):
        assert REPRODUCERS[189495](torch.device("mps")).startswith("the first of 17 batches differs from the CPU by ")


@pytest.mark.parametrize(("issue", "gib"), NEED_MEMORY.items())
def test_what_needs_gigabytes_runs_on_macs_that_have_them(mps, issue, gib, monkeypatch):
    device = torch.device("mps")
    with pytest.raises(CheckSkipped, match=f"^needs {gib} GiB of a Mac's GPU memory$"):
        REPRODUCERS[issue](device)  # the memory of a simulated device is another's
    monkeypatch.setattr(reproducers, "_is_mac", lambda device: True)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: gib * GIB - 2**29)
    with pytest.raises(CheckSkipped, match=f"^needs {gib} GiB of GPU memory, and Metal recommends {gib - 0.5} GiB"):
        REPRODUCERS[issue](device)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: gib * GIB)
    reproducers.needs_memory(gib, device)


def test_a_weight_that_torch_refuses_ends_no_process(monkeypatch):
    def refused(x, weight):
        raise RuntimeError("mat2 must be a matrix, got 1-D tensor")

    def failed(x, weight):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(reproducers.F, "linear", refused)
    assert REPRODUCERS[189565](torch.device("cpu")) is None
    monkeypatch.setattr(reproducers.F, "linear", failed)
    with pytest.raises(RuntimeError, match="no such kernel"):
        REPRODUCERS[189565](torch.device("cpu"))


def test_random_numbers_that_are_not_drawn_again_show(mps, monkeypatch):
    monkeypatch.setattr(reproducers, "checkpoint_settings", lambda given, device: {"use_reentrant": False})
    assert REPRODUCERS[127676](torch.device("mps")).endswith("were dropped the first or the second time only")


def test_gradients_that_differ_from_time_to_time_show(mps):
    class Drifting(Broken):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.factor *= 1 + 1e-6
            return super().__torch_dispatch__(func, types, args, kwargs)

    with Drifting("embedding_dense_backward", 1.0):
        assert REPRODUCERS[195404](torch.device("mps")) == "4 of 5 times they differed in some bit"


# The check.


UNKNOWN = " (not known for this machine: please report it)"


@pytest.mark.parametrize(
    ("issue", "known", "status", "text"),
    [
        (177116, None, "failed", f"pytorch issue 177116: wrong{UNKNOWN}"),
        (177116, KNOWN_FAULTS, "failed", "pytorch issue 177116: wrong"),
        (175191, None, "failed", f"pytorch issue 175191: wrong{UNKNOWN}"),  # which needs no warning where it is known
        (195404, None, "passed", "known, and harmless or rare: pytorch 195404 (wrong)"),
        (195163, KNOWN_FAULTS, "passed", "known on this machine, and no update fixes it: pytorch 195163 (wrong)"),
    ],
)
def test_a_fault_that_shows_fails_unless_it_is_known_and_stays(mps, results, monkeypatch, issue, known, status, text):
    if known is not None:
        monkeypatch.setattr(faults, "known_faults", lambda *machine: known)
    tried = {issue: lambda device: "wrong", 187521: REPRODUCERS[187521], 197636: REPRODUCERS[197636]}
    monkeypatch.setattr(faults, "REPRODUCERS", tried)
    check = results(CHECK)[CHECK]
    assert check.status == status
    assert check.figures[f"pytorch {issue}"] == "wrong"
    if status == "failed":
        assert check.text == text
    else:
        untested = "could not be tested: pytorch 197636 (needs 12 GiB of a Mac's GPU memory)"
        assert check.text == f"1 of 3 do not show; {text}; {untested}"


def test_what_this_torch_cannot_run_is_named(mps, results, monkeypatch):
    def missing(device):
        raise NotImplementedError("no such operator")

    monkeypatch.setattr(faults, "REPRODUCERS", {187521: missing})
    check = results(CHECK)[CHECK]
    assert check.status == "passed"
    assert check.text.endswith("could not be tested: pytorch 187521 (NotImplementedError: no such operator.)")


# A fault that ends the process.


@pytest.fixture
def run_on_a_mac(monkeypatch):
    """Runs the reproducer where the device counts as a Mac's; the child process ends as the arguments say."""
    monkeypatch.setattr(reproducers, "_is_mac", lambda device: True)

    def run(status: int, out: str = "", error: str = "") -> str | None:
        def ended(command, **settings):
            assert "ENDING_PROCESSES[197796]" in command[-1]
            return subprocess.CompletedProcess(command, status, out, error)

        monkeypatch.setattr(reproducers.subprocess, "run", ended)
        return REPRODUCERS[197796](torch.device("mps"))

    return run


def test_a_process_that_ends_shows_the_fault_unless_it_failed(run_on_a_mac):
    assert run_on_a_mac(-6) == "the process ended with signal 6"
    assert run_on_a_mac(0) is None
    assert run_on_a_mac(0, "wrong") == "wrong"
    with pytest.raises(RuntimeError, match="TypeError: no bfloat16"):
        run_on_a_mac(1, error="Traceback\nTypeError: no bfloat16")
