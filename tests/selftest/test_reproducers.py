"""Each known fault has a reproducer, which finds nothing on a device that works, and the fault on one that has it."""

import itertools
import subprocess
import sys
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mps_trainer.devices.known_faults import KNOWN_FAULTS
from mps_trainer.tools.selftest import faults, reproducers
from mps_trainer.tools.selftest.reproducers import GIB, REPRODUCERS
from mps_trainer.tools.selftest.results import CheckSkipped
from tests.conftest import refusal

CHECK = "known faults"
ATTENTION = "_scaled_dot_product_attention_math_for_mps"
# Which operator of the device is broken to show each.
BROKEN = {
    **dict.fromkeys([180776, 192934, 161640, 197796, 189495, 189565], "linear"),
    **dict.fromkeys([163597, 174861, 176767, 195910, 184180, 190791], ATTENTION),
    **dict.fromkeys([195163, 197636], "bmm"),
    177116: "mm",
    165257: "uniform_",
    170360: "sum",
    183825: "native_layer_norm_backward",
    191976: "native_layer_norm",
    180201: "linear_backward",
    187521: "baddbmm",
    195404: "embedding_dense_backward",
    190056: "lstm_mps_backward",
    188756: "embedding",
    194082: "any",
    189960: "cat",
    192212: "convolution",
    175191: "scatter_",
}
# The GPU would have to fail, or the process, or a kernel of torchvision is needed.
NEVER_RUN = {193571, 3267, 197805, 9510}
NEED_MEMORY = {188756: 5, 194082: 5, 189960: 5, 197636: 12}  # in GiB


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
        leaves = torch.utils._pytree.tree_leaves(args)
        is_on_device = any(isinstance(value, torch.Tensor) and value.device.type == "mps" for value in leaves)
        if func._schema.name != self.operator or not is_on_device:
            return func(*args, **(kwargs or {}))
        if func._schema.name.endswith("_"):
            return args[0]
        result = func(*args, **(kwargs or {}))
        return torch.utils._pytree.tree_map_only(torch.Tensor, self.wrong, result)

    def wrong(self, tensor):
        return ~tensor if tensor.dtype is torch.bool else tensor * self.factor + (self.factor - 1)


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
    seen, place = [], reproducers._before_large_numbers
    monkeypatch.setattr(reproducers, "_before_large_numbers", lambda *args: seen.append(place(*args)) or seen[-1])
    assert REPRODUCERS[issue](torch.device("cpu")) is None
    for tensor in seen:
        behind = torch.as_strided(tensor, (1,), (1,), tensor.numel())
        assert float(behind) == 1e4


NUMBERS = itertools.count(1)


def overflowed(batches):
    """Writes the last batch over the first, and leaves its own place as it was."""
    return torch.cat([batches[-1:], batches[1:-1], torch.zeros_like(batches[-1:])])


@pytest.mark.parametrize(
    ("issue", "operator", "wrong", "said"),
    [
        (176767, ATTENTION, lambda tensor: torch.nn.functional.pad(tensor, (0, 8)), ""),  # it is as wide as the keys
        (190791, ATTENTION, lambda tensor: tensor + 0.024 * tensor.abs().max(), ""),  # its thread measured so much
        (189495, "linear", overflowed, "the first of 17 batches differs from the CPU by "),
        (195404, "embedding_dense_backward", lambda tensor: tensor * (1 + 1e-6 * next(NUMBERS)), "4 of 5 times they"),
    ],
)
def test_a_device_that_is_wrong_as_its_thread_says_shows(mps, small, issue, operator, wrong, said):
    broken = Broken(operator)
    broken.wrong = wrong
    with broken:
        assert REPRODUCERS[issue](torch.device("mps")).startswith(said)


def test_random_numbers_that_are_not_drawn_again_show(mps, monkeypatch):
    monkeypatch.setattr(reproducers, "checkpoint_settings", lambda given, device: {"use_reentrant": False})
    assert REPRODUCERS[127676](torch.device("mps")).endswith("were dropped the first or the second time only")


@pytest.mark.parametrize(("issue", "gib"), NEED_MEMORY.items())
def test_what_needs_gigabytes_runs_on_macs_that_have_them(mps, issue, gib, monkeypatch):
    device = torch.device("mps")
    of_a_mac = f"needs {gib} GiB of a Mac's GPU memory"  # the memory of a simulated device is another's
    assert refusal(REPRODUCERS[issue], device, kind=CheckSkipped) == of_a_mac
    monkeypatch.setattr(reproducers, "_is_mac", lambda device: True)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: gib * GIB - 2**29)
    too_small = f"needs {gib} GiB of GPU memory, and Metal recommends {gib - 0.5} GiB"
    assert refusal(REPRODUCERS[issue], device, kind=CheckSkipped).startswith(too_small)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: gib * GIB)
    reproducers.needs_memory(gib, device)


def test_a_weight_that_torch_refuses_ends_no_process(monkeypatch):
    linear = mock.Mock(side_effect=RuntimeError("mat2 must be a matrix, got 1-D tensor"))
    monkeypatch.setattr(reproducers.F, "linear", linear)
    assert REPRODUCERS[189565](torch.device("cpu")) is None
    linear.side_effect = RuntimeError("no such kernel")
    assert refusal(REPRODUCERS[189565], torch.device("cpu"), kind=RuntimeError) == "no such kernel"


@pytest.mark.parametrize(
    ("factor", "found"), [(1.0, None), (100.0, "the gradient differs from the CPU by 9.9e+01 of ")]
)
def test_gradients_of_torchvision(mps, monkeypatch, factor, found):
    """Its kernel on mps added each gradient as often as there were groups of threads."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, image):
            return image.view_as(image)

        @staticmethod
        def backward(ctx, grad):
            return grad * (factor if grad.device.type == "mps" else 1)

    def roi_align(image, boxes, size):
        assert boxes[0].shape == (512, 4)
        return Scaled.apply(image) * (boxes[0][:, 2:] - boxes[0][:, :2]).mean() / size

    monkeypatch.setitem(sys.modules, "torchvision", None)
    assert refusal(REPRODUCERS[9510], torch.device("cpu"), kind=CheckSkipped) == "needs torchvision"
    ops = SimpleNamespace(roi_align=roi_align)
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(ops=ops))
    monkeypatch.setitem(sys.modules, "torchvision.ops", ops)
    device = torch.device("mps")
    assert refusal(REPRODUCERS[9510], device, kind=CheckSkipped) == "needs torchvision's kernel for mps"
    monkeypatch.setattr(reproducers, "_is_mac", lambda device: True)
    assert (REPRODUCERS[9510](device) or "").startswith(found or "")
    assert (REPRODUCERS[9510](device) is None) is (found is None)


UNKNOWN = " (not known for this machine: please report it)"


@pytest.mark.parametrize(
    ("issue", "known", "status", "text"),
    [
        (177116, None, "failed", f"pytorch issue 177116: wrong{UNKNOWN}"),
        (177116, KNOWN_FAULTS, "failed", "pytorch issue 177116: wrong"),
        (175191, None, "failed", f"pytorch issue 175191: wrong{UNKNOWN}"),  # a known one needs no warning
        (195404, None, "passed", "known, and harmless or rare: pytorch 195404 (wrong)"),
        (195163, KNOWN_FAULTS, "passed", "known on this machine, and no update fixes it: pytorch 195163 (wrong)"),
    ],
)
def test_a_fault_that_shows_fails_unless_it_is_known_and_stays(mps, results, monkeypatch, issue, known, status, text):
    missing = mock.Mock(side_effect=NotImplementedError("no such operator"))
    if known is not None:
        monkeypatch.setattr(faults, "known_faults", lambda *machine: known)
    tried = {issue: lambda device: "wrong", 187521: REPRODUCERS[187521], 197636: REPRODUCERS[197636], 188756: missing}
    monkeypatch.setattr(faults, "REPRODUCERS", tried)
    check = results(CHECK)[CHECK]
    assert check.status == status
    assert check.figures[f"pytorch {issue}"] == "wrong"
    if status == "failed":
        assert check.text == text
        return
    untested = "197636 (needs 12 GiB of a Mac's GPU memory), pytorch 188756 (NotImplementedError: no such operator.)"
    assert check.text == f"1 of 4 do not show; {text}; could not be tested: pytorch {untested}"


@pytest.mark.parametrize(
    ("status", "out", "found"),
    [
        (-6, "", "the process ended with signal 6"),
        (0, "", None),
        (0, "wrong", "wrong"),
        (1, "", "TypeError: no bfloat16"),
    ],
)
def test_a_process_that_ends_shows_the_fault_unless_it_failed(monkeypatch, status, out, found):
    ended = mock.Mock(return_value=subprocess.CompletedProcess([], status, out, "Traceback\nTypeError: no bfloat16"))
    monkeypatch.setattr(reproducers, "_is_mac", lambda device: True)
    monkeypatch.setattr(reproducers.subprocess, "run", ended)
    if status == 1:
        assert refusal(REPRODUCERS[197796], torch.device("mps"), kind=RuntimeError) == found
    else:
        assert REPRODUCERS[197796](torch.device("mps")) == found
    assert "ENDING_PROCESSES[197796]" in ended.call_args[0][0][-1]


@pytest.mark.integration
def test_the_code_of_the_child_process_runs(monkeypatch):
    ended = mock.Mock(return_value=subprocess.CompletedProcess([], 0, "", ""))
    monkeypatch.setattr(reproducers, "_is_mac", lambda device: True)
    with monkeypatch.context() as patch:
        patch.setattr(reproducers.subprocess, "run", ended)
        assert REPRODUCERS[189565](torch.device("mps")) is None
    command = [each.replace("'mps'", "'cpu'") for each in ended.call_args[0][0]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
