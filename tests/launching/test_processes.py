"""Tests which machines can run a launch, and the command line that starts the script."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace

import pytest

from mps_trainer import DeviceUnavailableError, MachineFacts, MisconfigurationException
from mps_trainer.launching import processes
from mps_trainer.launching.processes import (
    check_facts,
    check_machine,
    check_module,
    command_line,
    shell_status,
    torchrun_words,
)
from mps_trainer.launching.settings import LaunchSettings

MAC = MachineFacts(
    system="Darwin",
    machine="arm64",
    os_version="15.5",
    torch_version="2.13.0",
    mps_built=True,
    mps_available=True,
    mps_allocation_ok=True,
)
PC = MachineFacts(torch_version="2.13.0")
GPUS = replace(PC, cuda_built=True, cuda_count=2)
ON_CPU = {"ACCELERATE_USE_CPU": "true"}


@pytest.mark.parametrize("device", [None, "auto", "mps"])
def test_several_processes_on_mps_are_refused_with_the_way_on(device):
    with pytest.raises(MisconfigurationException) as refused:
        check_facts(LaunchSettings(device, num_processes=2), MAC, "--num_processes 2")
    assert str(refused.value).startswith("--num_processes 2: 2 processes on mps. A Mac has one GPU")
    assert "take --num_processes 1, or --cpu" in str(refused.value)


@pytest.mark.parametrize(
    ("facts", "settings", "kind"),
    [
        (replace(MAC, environment=ON_CPU), LaunchSettings("cpu", num_processes=2), "cpu"),
        (MAC, LaunchSettings("mps"), "mps"),
        (PC, LaunchSettings(num_processes=8), "cpu"),
        (GPUS, LaunchSettings("cuda", num_processes=2), "cuda"),
        (GPUS, LaunchSettings("auto", num_processes=2), "cuda"),
        (replace(GPUS, environment=ON_CPU), LaunchSettings("cpu", num_processes=4), "cpu"),
        # a flag or the shell goes before the file, which names a GPU
        (replace(GPUS, environment=ON_CPU), LaunchSettings("cuda", num_processes=4), "cpu"),
    ],
)
def test_what_the_machine_can_do_is_not_refused(facts, settings, kind):
    assert check_facts(settings, facts, "f").type == kind


def test_more_processes_than_gpus_are_refused():
    with pytest.raises(MisconfigurationException, match=r"^f: 3 processes take one cuda device each.*has 2\."):
        check_facts(LaunchSettings(num_processes=3), GPUS, "f")


@pytest.mark.parametrize("device", ["mps", "cuda", "xpu"])
def test_a_gpu_that_is_named_and_not_there_is_refused(device):
    with pytest.raises(MisconfigurationException, match=f"^my.yaml: accelerator='{device}' was requested") as refused:
        check_facts(LaunchSettings(device), PC, "my.yaml")
    assert isinstance(refused.value.__cause__, DeviceUnavailableError)


def test_the_machine_is_looked_at_only_where_it_matters(monkeypatch):
    looked = []
    monkeypatch.setattr(processes, "gather_facts", lambda environ: looked.append(environ) or GPUS)
    unseen = [LaunchSettings(), LaunchSettings("auto", num_processes=1), LaunchSettings("cpu")]
    seen = [LaunchSettings("mps"), LaunchSettings("cuda"), LaunchSettings("cpu", num_processes=2)]
    for settings in unseen:
        check_machine(settings, {}, "f")
    assert not looked
    for settings in seen:
        with contextlib.suppress(MisconfigurationException):  # that machine has no mps
            check_machine(settings, {}, "f")
    assert len(looked) == 3


def test_a_script_or_a_module_is_run_as_typed():
    assert command_line(["a.py", "--x", ""], False) == [sys.executable, "a.py", "--x", ""]
    assert command_line(["a.b", "c"], True) == [sys.executable, "-m", "a.b", "c"]
    words = torchrun_words(["a.py", "--nproc_per_node", "9"], False, 3)
    assert words[-3:] == ["a.py", "--nproc_per_node", "9"]
    assert words[words.index("--nproc_per_node") + 1] == "3"
    assert torchrun_words(["a.b"], True, 2)[-2:] == ["--module", "a.b"]


def test_torchrun_takes_the_words():
    from torch.distributed.run import parse_args

    parsed = parse_args(torchrun_words(["a.b", "--help"], True, 3))
    assert (parsed.nproc_per_node, parsed.module, parsed.standalone) == ("3", True, True)
    assert (parsed.training_script, parsed.training_script_args) == ("a.b", ["--help"])


def test_a_module_that_is_nowhere_is_refused(tmp_path):
    for name in ("json.tool", "sys", "torch.distributed.run"):
        check_module(name, "/")
    with pytest.raises(MisconfigurationException, match="no module 'of_my_own'"):
        check_module("of_my_own.train", str(tmp_path))
    (tmp_path / "of_my_own").mkdir()
    check_module("of_my_own.train", str(tmp_path))


@pytest.mark.parametrize(("code", "status"), [(0, 0), (3, 3), (-2, 130), (-15, 143), (-9, 137)])
def test_a_signal_is_128_and_its_number(code, status):
    assert shell_status(code) == status
