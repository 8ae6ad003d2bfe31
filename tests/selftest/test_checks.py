"""Each check passes on a device that works, and fails on one that is broken in the way that it looks for."""

import os
import re

import pytest
import safetensors.torch
import torch
from torch import nn

from mps_trainer import Trainer
from mps_trainer.devices import MPSAccelerator
from mps_trainer.selftest import CHECKS, run_selftest
from mps_trainer.tools.selftest import operators
from mps_trainer.tools.selftest.numbers import TOLERANCES, Tolerance, judge
from mps_trainer.tools.selftest.results import CheckFailed
from tests.conftest import on_device, refusal

COMPARED = "losses as on the CPU"
NO_KERNEL = "operator without kernel"
RESUMED = ("save and resume, CPU", "save and resume, device")


def test_all_pass_on_the_simulated_device(mps, results):
    found = results()
    assert list(found) == list(CHECKS)
    assert {name: check.text for name, check in found.items() if check.status != "passed"} == {}
    assert 0 < found[COMPARED].figures["largest_difference"] < TOLERANCES["fp32"].relative / 20
    assert found["blocking read"].figures["reads_between_logs"] == 0
    for name in RESUMED:
        assert found[name].figures["differing_parameters"] == 0


def test_on_the_cpu_what_is_not_for_it_is_skipped_and_says_why(results):
    found = results()
    skipped = {name: check.text for name, check in found.items() if check.status == "skipped"}
    assert {check.status for check in found.values()} == {"passed", "skipped"}
    of_devices = ["memory limit", "memory given back", "operator without kernel", "blocking read"]
    assert list(skipped) == [RESUMED[1], *of_devices]
    assert all(skipped.values())
    assert found[COMPARED].figures["largest_difference"] == 0.0


def test_what_a_launcher_asks_to_autocast_to_is_left_aside_and_stays(results, monkeypatch):
    """Float32 is compared with float32 whatever is in the environment, or a device that works would fail."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    plain, half = results(COMPARED, "bf16").values()
    assert (plain.status, half.status) == ("passed", "passed")
    assert plain.figures["losses"] != half.figures["losses"]
    assert plain.figures["cpu_losses"] == half.figures["cpu_losses"] == plain.figures["losses"]
    assert os.environ["ACCELERATE_MIXED_PRECISION"] == "bf16"


# A device that computes wrong numbers. The CPU, with which it is compared, computes the right ones.


def wrong_on_mps(change):
    """Returns a way to make something else of what nn.LayerNorm gives on mps, from its input and its result."""
    right = nn.LayerNorm.forward

    def forward(self, x):
        result = right(self, x)
        return change(x, result) if x.device.type == "mps" else result

    return lambda patch: patch.setattr(nn.LayerNorm, "forward", forward)


def weights_changed_on_reading(patch):
    load = safetensors.torch.load_file
    patch.setattr(
        safetensors.torch, "load_file", lambda path: {name: each + 1e-7 for name, each in load(path).items()}
    )


def draws_not_restored(patch):
    for module in ("checkpoints.rng", "loop.batch_source"):
        patch.setattr(f"mps_trainer.{module}.set_rng", lambda *_: None)


def nan_after_resuming(patch):
    train = Trainer.train

    def resumed(self, resume_from_checkpoint):
        if resume_from_checkpoint:
            wrong_on_mps(lambda x, result: result * float("nan"))(patch)
        return train(self, resume_from_checkpoint)

    patch.setattr(Trainer, "train", resumed)


def reads_in_each_step(patch):
    step = Trainer.training_step

    def reading(self, *args, **kwargs):
        loss = step(self, *args, **kwargs)
        loss.item()
        return loss

    patch.setattr(Trainer, "training_step", reading)


HIGH = "PYTORCH_MPS_HIGH_WATERMARK_RATIO"
FAILED_LOSSES = (COMPARED, "failed", f"on the CPU: a difference of .*{re.escape(TOLERANCES['fp32'].reason)}")
# How a device is wrong, the check that sees it, its outcome, and its text.
WRONG = {
    "gradients 1% off": (wrong_on_mps(lambda x, result: result + 0.01 * (x - x.detach())), *FAILED_LOSSES),
    "results 0.1% off": (wrong_on_mps(lambda x, result: result * 1.001), *FAILED_LOSSES),
    "nan": (wrong_on_mps(lambda x, result: result * float("nan")), "bf16", "failed", "^the loss is nan at step 1, "),
    "nan after resuming": (nan_after_resuming, RESUMED[1], "failed", "its losses differ by nan, "),
    "a format that it does not compute in": (
        lambda patch: patch.setattr(MPSAccelerator, "precisions", lambda facts: ("fp32", "fp16")),
        "bf16",
        "skipped",
        "^bfloat16 on mps came with macOS 14$",
    ),
    "draws that are not restored": (
        draws_not_restored, RESUMED[0], "failed", "the run resumed from step 4 differs from the uninterrupted run"
    ),
    "weights that were written wrong": (
        weights_changed_on_reading, RESUMED[1], "failed", "weights in the checkpoint differ from the model's"
    ),
    "a limit that does not hold": (
        lambda patch: patch.setattr(torch.mps, "set_per_process_memory_fraction", lambda fraction: None),
        "memory limit",
        "failed",
        r"^3\d\d\.0 MiB were allocated despite a limit of 2\d\d\.0 MiB$",
    ),
    "a limit of the environment": (
        lambda patch: patch.setenv(HIGH, "1.2"), "memory limit", "skipped", f"^{HIGH}=1.2 is set"
    ),
    "a cache that stays": (
        lambda patch: patch.setattr(torch.mps, "empty_cache", lambda: None),
        "memory given back",
        "failed",
        "are still held after emptying the cache",
    ),
    "a kernel for each operator": (
        lambda patch: patch.setattr(operators, "CANDIDATES", {"aten::add.Tensor": torch.abs}),
        NO_KERNEL,
        "skipped",
        "has an MPS kernel for each of aten::add.Tensor$",
    ),
    "reads between two logs": (
        reads_in_each_step, "blocking read", "failed", "^the steps between two logs read 10 values from the device$"
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", WRONG)
def test_a_device_that_is_wrong_shows(mps, results, monkeypatch, how):
    change, name, status, text = WRONG[how]
    change(monkeypatch)
    check = results(name)[name]
    assert (check.status, bool(re.search(text, check.text))) == (status, True), check.text
    if status == "failed" and name == COMPARED:
        assert check.figures["first_step_beyond"] <= 10


def test_wrong_numbers_in_16_bits_alone_show(mps, results, monkeypatch):
    wrong_on_mps(lambda x, result: 1.2 * result if torch.is_autocast_enabled("mps") else result)(monkeypatch)
    found = {name: check.status for name, check in results(COMPARED, "bf16", "fp16").items()}
    assert found == {COMPARED: "passed", "bf16": "failed", "fp16": "failed"}


def test_losses_that_are_the_same_and_teach_nothing_are_a_failure():
    flat = [0.7] * 20
    said = refusal(judge, flat, flat, Tolerance(0.0, ""), kind=CheckFailed)
    assert "the model did not learn: the loss goes from 0.700 to 0.700" in said


def test_on_a_device_that_adds_in_another_order_each_time_losses_that_are_near_pass(mps, results, monkeypatch):
    noise = torch.Generator().manual_seed(0)
    wrong_on_mps(lambda x, result: result * (1 + 1e-6 * torch.rand(result.shape, generator=noise).to(result.device)))(
        monkeypatch
    )
    check = results(RESUMED[1])[RESUMED[1]]
    assert check.status == "passed"
    assert check.figures["differing_parameters"] > 10
    assert "a GPU may sum in another order each time" in check.text


@pytest.mark.parametrize(("fallback", "says"), [(False, "raises NotImplementedError"), (True, "runs on the CPU")])
def test_an_operator_without_a_kernel_does_as_the_switch_says(monkeypatch, fallback, says):
    for told in (fallback, not fallback):
        with on_device("mps", fallback=fallback) as simulated:
            simulated.fallback = told  # the check believes that the switch is so
            check = run_selftest(simulated, checks={NO_KERNEL: CHECKS[NO_KERNEL]}).checks[0]
        assert says in check.text or check.status == "failed"
        assert check.status == ("passed" if told == fallback else "failed")
        assert "aten::special_airy_ai.out" in check.text
