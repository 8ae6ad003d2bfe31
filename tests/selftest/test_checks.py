"""Each check passes on a device that works, and fails on one that is broken in the way that it looks for."""

from __future__ import annotations

import os
import re

import pytest
import torch
from torch import nn

from mps_trainer import Trainer
from mps_trainer.selftest import CHECKS, run_selftest
from mps_trainer.selftest.numbers import TOLERANCES, Tolerance, judge
from mps_trainer.selftest.results import CheckFailed
from tests.conftest import on_device

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


def only_on_mps(monkeypatch, change):
    """Lets `change` make something else of what nn.LayerNorm gives on mps, given its input and its result."""
    right = nn.LayerNorm.forward

    def forward(self, x):
        result = right(self, x)
        return change(x, result) if x.device.type == "mps" else result

    monkeypatch.setattr(nn.LayerNorm, "forward", forward)


@pytest.mark.parametrize(
    "change",
    [
        lambda x, result: result + 0.01 * (x - x.detach()),
        lambda x, result: result * 1.001,
        lambda x, result: torch.where(result > 2.0, 2.0, result),
    ],
    ids=["gradients 1% off", "results 0.1% off", "large results cut off"],
)
def test_a_wrong_kernel_shows_in_the_losses(mps, results, monkeypatch, change):
    only_on_mps(monkeypatch, change)
    found = results(COMPARED, RESUMED[0])
    assert found[COMPARED].status == "failed"
    assert "on the CPU: a difference of" in found[COMPARED].text
    assert TOLERANCES["fp32"].reason in found[COMPARED].text
    assert found[COMPARED].figures["first_step_beyond"] <= 10
    assert found[RESUMED[0]].status == "passed"  # the others are made all the same


def test_nan_is_named_with_its_step(mps, results, monkeypatch):
    only_on_mps(monkeypatch, lambda x, result: result * float("nan"))
    check = results("bf16")["bf16"]
    assert check.status == "failed"
    assert check.text.startswith("the loss is nan at step 1, and ")


def test_a_format_that_the_device_does_not_compute_in_is_skipped(mps, results, monkeypatch):
    from mps_trainer.devices import MPSAccelerator

    monkeypatch.setattr(MPSAccelerator, "precisions", lambda facts: ("fp32", "fp16"))
    found = results("bf16", "fp16")
    assert (found["bf16"].status, found["bf16"].text) == ("skipped", "bfloat16 on mps came with macOS 14")
    assert found["fp16"].status == "passed"


def test_wrong_numbers_in_16_bits_alone_show(mps, results, monkeypatch):
    def change(x, result):
        return 1.2 * result if torch.is_autocast_enabled("mps") else result

    only_on_mps(monkeypatch, change)
    assert {name: check.status for name, check in results(COMPARED, "bf16", "fp16").items()} == {
        COMPARED: "passed",
        "bf16": "failed",
        "fp16": "failed",
    }


def test_losses_that_are_the_same_and_teach_nothing_are_a_failure():
    flat = [0.7] * 20
    with pytest.raises(CheckFailed, match=r"the model did not learn: the loss goes from 0\.700 to 0\.700"):
        judge(flat, flat, Tolerance(0.0, ""))


# Saving.


def test_draws_that_are_not_restored_show(results, monkeypatch):
    for module in ("checkpoints.rng", "loop.rng"):
        monkeypatch.setattr(f"mps_trainer.{module}.set_rng", lambda state: None)
    check = results(RESUMED[0])[RESUMED[0]]
    assert check.status == "failed"
    assert "the run resumed from step 4 differs from the uninterrupted run" in check.text


def test_weights_that_were_written_wrong_show(mps, results, monkeypatch):
    import safetensors.torch

    load = safetensors.torch.load_file
    monkeypatch.setattr(
        "safetensors.torch.load_file", lambda path: {name: value + 1e-7 for name, value in load(path).items()}
    )
    for check in results(*RESUMED).values():
        assert check.status == "failed"
        assert "weights in the checkpoint differ from the model's" in check.text


def test_on_a_device_that_adds_in_another_order_each_time_losses_that_are_near_pass(mps, results, monkeypatch):
    noise = torch.Generator().manual_seed(0)

    def change(x, result):
        return result * (1 + 1e-6 * torch.rand(result.shape, generator=noise).to(result.device))

    only_on_mps(monkeypatch, change)
    check = results(RESUMED[1])[RESUMED[1]]
    assert check.status == "passed"
    assert check.figures["differing_parameters"] > 10
    assert "a GPU may sum in another order each time" in check.text


# Memory.


def test_a_limit_that_does_not_hold_shows(mps, results, monkeypatch):
    monkeypatch.setattr(torch.mps, "set_per_process_memory_fraction", lambda fraction: None)
    check = results("memory limit")["memory limit"]
    assert check.status == "failed"
    assert re.fullmatch(r"3\d\d\.0 MiB were allocated despite a limit of 2\d\d\.0 MiB", check.text)


def test_a_limit_of_the_environment_is_left_alone(results, mps, monkeypatch):
    monkeypatch.setenv("PYTORCH_MPS_HIGH_WATERMARK_RATIO", "1.2")
    check = results("memory limit")["memory limit"]
    assert check.status == "skipped"
    assert check.text.startswith("PYTORCH_MPS_HIGH_WATERMARK_RATIO=1.2 is set")


def test_a_cache_that_stays_shows(mps, results, monkeypatch):
    monkeypatch.setattr(torch.mps, "empty_cache", lambda: None)
    check = results("memory given back")["memory given back"]
    assert check.status == "failed"
    assert "are still held after emptying the cache" in check.text


# Operators.


@pytest.mark.parametrize(("fallback", "says"), [(False, "raises NotImplementedError"), (True, "runs on the CPU")])
def test_an_operator_without_a_kernel_does_as_the_switch_says(monkeypatch, fallback, says):
    for told in (fallback, not fallback):
        with on_device("mps", fallback=fallback) as simulated:
            simulated.fallback = told  # what the check believes the switch to be
            check = run_selftest(simulated, checks={NO_KERNEL: CHECKS[NO_KERNEL]}).checks[0]
        assert says in check.text or check.status == "failed"
        assert check.status == ("passed" if told == fallback else "failed")
        assert "aten::special_airy_ai.out" in check.text


def test_a_torch_that_has_a_kernel_for_each_is_skipped(mps, results, monkeypatch):
    monkeypatch.setattr("mps_trainer.selftest.operators.CANDIDATES", {"aten::add.Tensor": torch.abs})
    check = results(NO_KERNEL)[NO_KERNEL]
    assert check.status == "skipped"
    assert check.text.endswith("has an MPS kernel for each of aten::add.Tensor")


def test_reads_between_two_logs_show(mps, results, monkeypatch):
    step = Trainer.training_step

    def reading(self, *args, **kwargs):
        loss = step(self, *args, **kwargs)
        loss.item()
        return loss

    monkeypatch.setattr(Trainer, "training_step", reading)
    check = results("blocking read")["blocking read"]
    assert check.status == "failed"
    assert check.text == "the steps between two logs read 10 values from the device"


# Together.


def test_checks_that_raise_fail_in_one_line_and_the_others_still_run(results, monkeypatch):
    def train(self, *args, **kwargs):
        raise RuntimeError("first\nsecond")

    monkeypatch.setattr(Trainer, "train", train)
    found = results()
    failed = {name: check.text for name, check in found.items() if check.status == "failed"}
    assert list(failed) == [COMPARED, "bf16", "fp16", RESUMED[0]]
    assert set(failed.values()) == {"RuntimeError: first second."}
