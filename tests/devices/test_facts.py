"""Gathering facts: here for real, elsewhere with injected answers."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from mps_trainer import MisconfigurationException, gather_facts
from mps_trainer.devices.facts import macos_version, parse_version
from mps_trainer.devices.probes import Probes
from tests import HUNG_AFTER
from tests.devices.machines import OUT_OF_MEMORY


def fake_torch(version="2.9.0", built=True, available=True, failure=None, cuda=None, cuda_count=0, xpu_count=None):
    """As much of torch as the facts ask for."""

    def ones(size, device):
        assert device == "mps"
        if failure:
            raise RuntimeError(failure)
        return SimpleNamespace(item=lambda: 1.0)

    torch = SimpleNamespace(
        __version__=version,
        ones=ones,
        version=SimpleNamespace(cuda=cuda),
        backends=SimpleNamespace(mps=SimpleNamespace(is_built=lambda: built, is_available=lambda: available)),
        cuda=SimpleNamespace(device_count=lambda: cuda_count),
    )
    if xpu_count is not None:
        torch.xpu = SimpleNamespace(_is_compiled=lambda: True, device_count=lambda: xpu_count)
    return torch


def mac_probes(sysctls=None, **changes):
    answers = {
        "system": lambda: "Darwin",
        "machine": lambda: "arm64",
        "release": lambda: "23.5.0",
        "mac_version": lambda: "14.5",
        "sysctl": {"kern.hv_vmm_present": 0, **(sysctls or {})}.get,
        "import_torch": fake_torch,
        "fallback_when_torch_loaded": lambda: False,
    }
    return Probes(**{**answers, **changes})


def raising(error):
    def probe():
        raise error

    return probe


def test_the_facts_of_this_machine():
    import platform

    import torch

    facts = gather_facts()
    assert facts.system == platform.system()
    assert facts.machine == platform.machine()
    assert facts.os_version
    assert facts.torch_version == torch.__version__
    assert facts.mps_built == torch.backends.mps.is_built()
    assert facts.cuda_count == torch.cuda.device_count()
    assert facts.python_executable == sys.executable
    assert facts.torch_error is None
    assert facts.mps_allocation_ok == (facts.mps_available and facts.mps_allocation_error is None)


@pytest.mark.parametrize(("vendors", "count"), [([], 0), (["0x10de", "0x1002"], 0), (["0x8086", "0x10de"], 1)])
def test_linux_lists_its_intel_gpus(tmp_path, vendors, count):
    for number, vendor in enumerate(vendors):
        card = tmp_path / f"card{number}" / "device"
        card.mkdir(parents=True)
        (card / "vendor").write_text(f"{vendor}\n")
        (tmp_path / f"card{number}-DP-1").mkdir()
    (tmp_path / "renderD128" / "device").mkdir(parents=True)
    (tmp_path / "renderD128" / "device" / "vendor").write_text("0x8086\n")
    linux = {"system": lambda: "Linux", "intel_gpus": lambda: Probes.intel_gpus(str(tmp_path))}
    assert gather_facts(Probes(**linux), {}).intel_gpus == count


def test_a_native_mac():
    facts = gather_facts(mac_probes(), {})
    assert (facts.system, facts.os_version, facts.machine) == ("Darwin", "14.5", "arm64")
    assert (facts.rosetta, facts.virtual_machine) == (False, False)
    assert (facts.mps_built, facts.mps_available, facts.mps_allocation_ok) == (True, True, True)


@pytest.mark.parametrize(("translated", "rosetta"), [(1, True), (None, False)])
def test_rosetta_is_seen_by_sysctl_where_the_architecture_looks_like_an_intel_mac(translated, rosetta):
    probes = mac_probes({"sysctl.proc_translated": translated}, machine=lambda: "x86_64")
    assert gather_facts(probes, {}).rosetta is rosetta


def test_a_virtual_mac_keeps_the_first_line_of_the_failed_allocation():
    torch = fake_torch(failure=OUT_OF_MEMORY + "\nUse PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0")
    facts = gather_facts(mac_probes({"kern.hv_vmm_present": 1}, import_torch=lambda: torch), {})
    assert facts.virtual_machine is True
    assert facts.mps_available
    assert not facts.mps_allocation_ok
    assert facts.mps_allocation_error == OUT_OF_MEMORY


def test_nothing_is_allocated_where_mps_is_not_reported():
    torch = fake_torch(available=False, failure="must not be called")
    facts = gather_facts(mac_probes(import_torch=lambda: torch), {})
    assert (facts.mps_available, facts.mps_allocation_ok, facts.mps_allocation_error) == (False, False, None)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModuleNotFoundError("No module named 'torch'"), "ModuleNotFoundError: No module named 'torch'"),
        (OSError("[WinError 126] c10.dll\nmore"), "OSError: [WinError 126] c10.dll"),
        (RuntimeError(""), "RuntimeError: RuntimeError"),
    ],
)
def test_a_torch_that_cannot_be_imported_is_a_fact(error, said):
    facts = gather_facts(mac_probes(import_torch=raising(error)), {})
    assert facts.torch_version is None
    assert facts.torch_error == said
    assert not facts.mps_built


def test_an_empty_folder_called_torch_is_a_broken_torch():
    facts = gather_facts(mac_probes(import_torch=SimpleNamespace), {})
    assert facts.torch_version is None
    assert facts.torch_error.startswith("AttributeError")


@pytest.mark.parametrize(
    ("torch", "found"),
    [({"cuda": "12.8", "cuda_count": 8}, (True, 8, False, 0)), ({"xpu_count": 2}, (False, 0, True, 2))],
)
def test_gpus_of_other_makers(torch, found):
    linux = {"system": lambda: "Linux", "machine": lambda: "x86_64", "release": lambda: "6.8.0"}
    facts = gather_facts(Probes(**linux, import_torch=lambda: fake_torch(built=False, available=False, **torch)), {})
    assert (facts.cuda_built, facts.cuda_count, facts.xpu_built, facts.xpu_count) == found


def test_the_variables_of_torchrun_are_numbers():
    environ = {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"}
    facts = gather_facts(mac_probes(), {**environ, "MASTER_PORT": "29500"})
    assert (facts.world_size, facts.rank, facts.local_rank, facts.local_world_size) == (4, 3, 1, 2)
    assert (facts.master_addr, facts.master_port) == ("10.0.0.1", 29500)
    assert gather_facts(mac_probes(), {}).world_size is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("WORLD_SIZE", "two"), ("WORLD_SIZE", "0"), ("WORLD_SIZE", ""), ("RANK", "-1"), ("LOCAL_RANK", "1.0"),
     ("LOCAL_WORLD_SIZE", "x"), ("MASTER_PORT", "http")],
)  # fmt: skip
def test_a_malformed_variable_of_torchrun_is_named(name, value):
    with pytest.raises(MisconfigurationException, match=rf"variable {name} is '{value}'.*unset it"):
        gather_facts(mac_probes(), {name: value})


@pytest.mark.parametrize(("rank", "size"), [("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")])
def test_a_rank_outside_the_group_is_refused(rank, size):
    with pytest.raises(MisconfigurationException, match=f"{rank} is 2 while {size} is 2"):
        gather_facts(mac_probes(), {rank: "2", size: "2"})


def test_only_the_variables_that_matter_are_recorded():
    environ = {"PYTORCH_ENABLE_MPS_FALLBACK": "1", "ACCELERATE_USE_CPU": "true", "HF_TOKEN": "secret", "HOME": "/root"}
    facts = gather_facts(mac_probes(), environ)
    assert facts.environment == {"PYTORCH_ENABLE_MPS_FALLBACK": "1", "ACCELERATE_USE_CPU": "true"}
    assert facts.fallback_set_too_late


@pytest.mark.parametrize(
    ("reported", "darwin", "version"),
    [
        ("14.5", "23.5.0", "14.5"),
        ("10.16", "21.3.0", "12.2"),  # a Python built for macOS 10.9 is told 10.16
        ("10.16", "21.4.0", "12.3"),
        ("10.16", "22.6.0", "13.5"),
        ("10.16", "24.1.0", "15.1"),
        ("16.0", "25.0.0", "26.0"),  # and one built before macOS 26 is told 16
        ("26.0", "25.0.0", "26.0"),
        ("10.15.7", "19.6.0", "10.15.7"),
        ("", "23.5.0", "14.5"),
        ("10.16", "unknown", "10.16"),
    ],
)
def test_the_version_of_macos_is_told_from_its_kernel_where_it_is_disguised(reported, darwin, version):
    assert macos_version(reported, darwin) == version


# --- what importing costs, and when torch read its switch ---------------------------------------------------------


def python(code: str, **environ: str) -> str:
    """Returns what `code` prints in a new interpreter, whose environment has no fallback switch unless given."""
    import os

    variables = {name: value for name, value in os.environ.items() if name != "PYTORCH_ENABLE_MPS_FALLBACK"}
    result = subprocess.run(
        [sys.executable, "-c", code], env={**variables, **environ}, capture_output=True, text=True, timeout=HUNG_AFTER
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.integration
def test_importing_the_package_imports_neither_torch_nor_transformers_nor_lightning():
    heavy = python(
        "import sys, mps_trainer, mps_trainer.devices, mps_trainer.cli\n"
        "mps_trainer.MPSAccelerator()\n"
        "heavy = ('torch', 'transformers', 'lightning', 'numpy', 'ctypes', 'asyncio')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    assert heavy == "[]"


@pytest.mark.integration
def test_resolving_and_printing_a_decision_imports_no_torch():
    printed = python(
        "import sys, mps_trainer as m\n"
        "facts = m.MachineFacts(torch_version='2.9.0', cuda_built=True, cuda_count=2)\n"
        "decision = m.resolve(m.DeviceRequest(), facts)\n"
        "str(decision), decision.to_dict()\n"
        "print('torch' in sys.modules, decision.device, 'torch' in sys.modules)"
    )
    assert printed == "False cuda:0 True"


SET = "os.environ['PYTORCH_ENABLE_MPS_FALLBACK'] = '1'"
SHOW = "f = mps_trainer.gather_facts(); print(f.fallback_when_torch_loaded, f.fallback_set_too_late)"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("order", "printed"),
    [
        (["import mps_trainer", "import torch", SET], "False True"),
        (["import mps_trainer", SET], "True False"),
        ([SET, "import torch", "import mps_trainer"], "True False"),
        (["import torch", "import mps_trainer", SET], "False True"),
        # Looking for torch is not loading it: transformers looks when it is imported.
        (["import mps_trainer", "importlib.util.find_spec('torch')", SET, "import torch"], "True False"),
        (["import mps_trainer", "os.environ['PYTORCH_ENABLE_MPS_FALLBACK'] = '0'", "import torch", SET], "False True"),
    ],
)
def test_whether_the_fallback_switch_was_set_in_time(order, printed):
    assert python("\n".join(["import importlib.util, os, sys", *order, SHOW.replace("; ", "\n")])) == printed


@pytest.mark.integration
def test_the_watch_for_torch_leaves_no_trace_once_torch_is_loaded():
    printed = python(
        "import sys\n"
        "before = list(sys.meta_path)\n"
        "import mps_trainer\n"
        "assert sys.meta_path[1:] == before\n"
        "import torch\n"
        "print([type(finder).__name__ for finder in sys.meta_path if 'Watch' in type(finder).__name__])"
    )
    assert printed == "[]"


def test_versions_are_compared_as_numbers():
    assert parse_version("2.13.0+cpu") == (2, 13)
    assert parse_version("26") == (26, 0)
    assert parse_version(None) == parse_version("unknown") == ()
