"""Gathering facts: here for real, elsewhere with injected answers. A report asks for more of them than a run."""

import ctypes
import json
import os
import platform
import re
import sys
from importlib.metadata import version
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from mps_trainer import MachineFacts, gather_facts
from mps_trainer.devices import DeviceRequest, probes, resolve
from mps_trainer.devices.facts import PACKAGES, for_a_report, macos_version
from mps_trainer.devices.launchers import LAUNCHER_INTEGERS
from mps_trainer.devices.probes import intel_gpus, mlx_backends, sysctl_int, sysctl_text, unreadable_switch
from tests import run_python
from tests.conftest import refusal
from tests.devices.machines import OUT_OF_MEMORY


def fake_torch(version="2.9.0", built=True, available=True, failure=None, cuda=None, cuda_count=0, xpu_count=None):
    """As much of torch as the facts ask for."""

    def ones(size, device):
        assert device == "mps"
        if failure:
            raise RuntimeError(failure)
        return SimpleNamespace(item=lambda: 1.0)

    found = SimpleNamespace(
        __version__=version,
        ones=ones,
        version=SimpleNamespace(cuda=cuda),
        backends=SimpleNamespace(mps=SimpleNamespace(is_built=lambda: built, is_available=lambda: available)),
        cuda=SimpleNamespace(device_count=lambda: cuda_count),
    )
    if xpu_count is not None:
        found.xpu = SimpleNamespace(_is_compiled=lambda: True, device_count=lambda: xpu_count)
    return found


def gathered(answers, environ, report=False, **settings):
    """Returns the facts of a machine whose probes have these answers."""
    with mock.patch.multiple(probes, **answers):
        facts = gather_facts(environ, **settings)
        return for_a_report(facts) if report else facts


def mac_probes(sysctls=None, torch=None, **changes):
    answers = {
        "system": lambda: "Darwin",
        "machine": lambda: "arm64",
        "release": lambda: "23.5.0",
        "mac_version": lambda: "14.5",
        "sysctl_int": {"kern.hv_vmm_present": 0, **(sysctls or {})}.get,
        "import_torch": lambda: fake_torch(**(torch or {})),
        "fallback_when_torch_loaded": lambda: False,
    }
    return {**answers, **changes}


def linux_probes(**torch):
    return mac_probes(torch={"built": False, "available": False, **torch}, system=lambda: "Linux")


def raising(error):
    return mock.Mock(side_effect=error)


TORCHRUN = {
    "world_size": 4, "rank": 3, "local_rank": 1, "local_world_size": 2, "master_addr": "10.0.0.1", "master_port": 29500
}  # fmt: skip
SWITCHES = {"PYTORCH_ENABLE_MPS_FALLBACK": "1", "ACCELERATE_USE_CPU": "true"}
NO_CUDA, NO_XPU = {"cuda_built": False, "cuda_count": 0}, {"xpu_built": False, "xpu_count": 0}
# What is asked, the environment, and some of the facts.
GATHERED = {
    "a native Mac": (
        mac_probes(),
        {},
        {
            **{"system": "Darwin", "os_version": "14.5", "machine": "arm64", "rosetta": False, "world_size": None},
            **{"virtual_machine": False, "mps_built": True, "mps_available": True, "mps_allocation_ok": True},
        },
    ),
    "Rosetta": (mac_probes({"sysctl.proc_translated": 1}, machine=lambda: "x86_64"), {}, {"rosetta": True}),
    "an Intel Mac": (mac_probes(machine=lambda: "x86_64"), {}, {"rosetta": False}),
    "mps that is not reported": (
        mac_probes(torch={"available": False, "failure": "must not be called"}),
        {},
        {"mps_available": False, "mps_allocation_ok": False, "mps_allocation_error": None},
    ),
    "CUDA": (linux_probes(cuda="12.8", cuda_count=8), {}, {"cuda_built": True, "cuda_count": 8, **NO_XPU}),
    "XPU": (linux_probes(xpu_count=2), {}, {"xpu_built": True, "xpu_count": 2, **NO_CUDA}),
    "torchrun": (mac_probes(), {name.upper(): str(value) for name, value in TORCHRUN.items()}, TORCHRUN),
    "only variables that matter": (
        mac_probes(),
        {**SWITCHES, "HF_TOKEN": "secret", "HOME": "/root"},
        {"environment": SWITCHES, "fallback_set_too_late": True},
    ),
}


@pytest.mark.parametrize("case", GATHERED)
def test_facts_are_those_of_the_probes(case):
    answers, environ, expected = GATHERED[case]
    facts = gathered(answers, environ)
    assert {name: getattr(facts, name) for name in expected} == expected


@pytest.mark.parametrize(("vendors", "count"), [([], 0), (["0x10de", "0x1002"], 0), (["0x8086", "0x10de"], 1)])
def test_linux_lists_its_intel_gpus(tmp_path, vendors, count):
    cards = {f"card{number}": vendor for number, vendor in enumerate(vendors)}
    for card, vendor in {**cards, "renderD128": "0x8086"}.items():
        (tmp_path / card / "device").mkdir(parents=True)
        (tmp_path / card / "device" / "vendor").write_text(f"{vendor}\n")
        (tmp_path / f"{card}-DP-1").mkdir()
    linux = {"system": lambda: "Linux", "intel_gpus": lambda: intel_gpus(str(tmp_path))}
    assert gathered(linux, {}).intel_gpus == count


def test_a_virtual_mac_keeps_the_first_line_of_the_failed_allocation():
    failure = OUT_OF_MEMORY + "\nUse PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0"
    facts = gathered(mac_probes({"kern.hv_vmm_present": 1}, {"failure": failure}), {})
    assert (facts.virtual_machine, facts.mps_available, facts.mps_allocation_ok) == (True, True, False)
    assert facts.mps_allocation_error == OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("import_torch", "said"),
    [
        (raising(ModuleNotFoundError("No module named 'torch'")), "ModuleNotFoundError: No module named 'torch'"),
        (raising(OSError("[WinError 126] c10.dll\nmore")), "OSError: [WinError 126] c10.dll"),
        (raising(RuntimeError("")), "RuntimeError: RuntimeError"),
        (SimpleNamespace, "AttributeError: 'types.SimpleNamespace' object has no attribute '__version__'"),
    ],
)
def test_a_torch_that_cannot_be_imported_is_a_fact(import_torch, said):
    facts = gathered(mac_probes(import_torch=import_torch), {})
    assert (facts.torch_version, facts.torch_error, facts.mps_built) == (None, said, False)


@pytest.mark.parametrize(
    ("name", "value"),
    [("WORLD_SIZE", "two"), ("WORLD_SIZE", "-2"), ("RANK", "-2"), ("LOCAL_RANK", "1.0"), ("LOCAL_WORLD_SIZE", "x"),
     ("MASTER_PORT", "http")],
)  # fmt: skip
def test_a_malformed_variable_of_torchrun_is_named(name, value):
    assert re.search(rf"variable {name} is '{value}'.*unset it", refusal(gathered, mac_probes(), {name: value}))


LEFT_OVER = [
    {"LOCAL_RANK": "-1"},
    {"LOCAL_RANK": "-1", "RANK": "-1", "WORLD_SIZE": "1"},
    {"LOCAL_RANK": "-1", "RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"},
    {"WORLD_SIZE": "0", "LOCAL_WORLD_SIZE": "0"},
    {"WORLD_SIZE": "-1"},
    {"WORLD_SIZE": "1", "RANK": " "},
    dict.fromkeys(LAUNCHER_INTEGERS, "") | {"MASTER_ADDR": ""},
]


@pytest.mark.parametrize("environ", LEFT_OVER, ids=str)
def test_variables_that_say_there_is_one_process_are_not_of_a_launcher(environ):
    facts = gathered(mac_probes(), environ)
    assert (facts.world_size in (None, 1), facts.rank, facts.local_rank) == (True, None, None)
    assert facts.master_addr is None
    assert resolve(DeviceRequest(), facts).world_size == 1


@pytest.mark.parametrize(("rank", "size"), [("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")])
def test_a_rank_outside_the_group_is_refused(rank, size):
    assert f"{rank} is '2', which is not below {size}=2" in refusal(gathered, mac_probes(), {rank: "2", size: "2"})


@pytest.mark.parametrize(
    ("reported", "darwin", "version"),
    [
        ("14.5", "23.5.0", "14.5"),
        ("10.16", "21.3.0", "12.2"),  # a Python built for macOS 10.9 is told 10.16
        ("10.16", "22.6.0", "13.5"),
        ("16.0", "25.0.0", "26.0"),  # and one built before macOS 26 is told 16
        ("10.15.7", "19.6.0", "10.15.7"),
        ("", "23.5.0", "14.5"),
        ("10.16", "unknown", "10.16"),
    ],
)
def test_the_version_of_macos_is_told_from_its_kernel_where_it_is_disguised(reported, darwin, version):
    assert macos_version(reported, darwin) == version


@pytest.fixture(autouse=True)
def without_the_switch(monkeypatch):
    monkeypatch.delenv("PYTORCH_ENABLE_MPS_FALLBACK", raising=False)


SET = "os.environ['PYTORCH_ENABLE_MPS_FALLBACK'] = '1'"
SHOW = "f = mps_trainer.gather_facts(); print(f.fallback_when_torch_loaded, f.fallback_set_too_late)"
WATCHES = "assert not any('Watch' in type(finder).__name__ for finder in sys.meta_path)"  # once torch is loaded


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
def test_the_switch_was_set_in_time_or_not_and_the_watch_for_torch_ends(order, printed, tmp_path):
    (tmp_path / "torch").mkdir()  # a torch that does nothing: only when it is loaded matters
    (tmp_path / "torch" / "__init__.py").write_text("from . import version")
    (tmp_path / "torch" / "version.py").touch()
    result = run_python("-c", "\n".join(["import importlib.util, os, sys", *order, SHOW, WATCHES]), cwd=tmp_path)
    assert (result.stdout.strip(), result.returncode) == (printed, 0), result.stderr


def asked(name):
    return mock.Mock(side_effect=pytest.fail.Exception(f"{name} was asked"))


def test_a_run_does_not_ask_what_only_a_report_wants():
    names = "sysctl_text physical_memory version_of free_bytes names_in cpuinfo recommended_bytes mlx_backends"
    facts = gathered(mac_probes(**{name: asked(name) for name in names.split()}), {})
    assert (facts.chip, facts.memory_bytes, facts.cache_free_bytes, facts.packages) == (None, None, None, {})


def mac_report(torch=None, **changes):
    return mac_probes(
        {},
        torch,
        **{
            "sysctl_text": {"machdep.cpu.brand_string": "Apple M3 Pro", "hw.model": "Mac15,6"}.get,
            "physical_memory": lambda: 18 * 1024**3,
            "version_of": {"torch": "2.9.0", "transformers": "5.0.0"}.get,
            "free_bytes": lambda folder: 7,
            "names_in": lambda folder: [],
            "recommended_bytes": lambda: 12 * 1024**3,
            "mlx_backends": asked("MLX"),
            **changes,
        },
    )


def test_the_report_of_a_mac():
    facts = gathered(mac_report(), {}, report=True)
    assert (facts.chip, facts.model, facts.nvidia_gpus) == ("Apple M3 Pro", "Mac15,6", None)
    assert (facts.memory_bytes, facts.recommended_bytes) == (18 * 1024**3, 12 * 1024**3)
    assert (facts.conda, facts.cache_free_bytes) == (False, 7)
    assert facts.packages == {"torch": "2.9.0", "transformers": "5.0.0"}
    has_mlx = mac_report(version_of={"mlx": "0.32.4"}.get, mlx_backends=lambda: "ring, jaccl")
    facts = gathered(has_mlx, {}, report=True)
    assert (facts.mlx, facts.mlx_backends) == (True, "ring, jaccl")
    no_mps = mac_report(torch={"available": False}, recommended_bytes=asked("Metal"))
    assert gathered(no_mps, {}, report=True).recommended_bytes is None


def test_the_backends_of_mlx_on_this_machine(monkeypatch):
    pytest.importorskip("mlx.core")
    assert mlx_backends().startswith("ring")
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    assert mlx_backends() is None


def test_the_report_of_a_linux_machine():
    folders = {"/proc/driver/nvidia/gpus": ["0000:01:00.0", "0000:02:00.0"], sys.prefix: ["bin", "conda-meta"]}
    answers = {
        "system": lambda: "Linux",
        "import_torch": raising(ImportError("none")),
        "names_in": lambda folder: folders.get(folder, []),
        "cpuinfo": lambda *names: {"model name": "AMD EPYC", "flags": "sse2 avx512_bf16"}[names[0]],
        "sysctl_int": asked("sysctl"),
        "sysctl_text": asked("sysctl"),
    }
    facts = gathered(answers, {}, report=True)
    assert (facts.chip, facts.nvidia_gpus, facts.conda) == ("AMD EPYC", 2, True)
    assert facts.cpu_bfloat16 is True


def test_the_report_of_this_machine(tmp_path, monkeypatch, mps):
    monkeypatch.setenv("MPS_TRAINER_CACHE", str(tmp_path / "not" / "there" / "yet"))
    facts = for_a_report(gather_facts())
    assert (facts.system, facts.machine) == (platform.system(), platform.machine())
    assert facts.os_version
    assert (facts.torch_version, facts.torch_error) == (torch.__version__, None)
    assert facts.mps_built == facts.mps_available == facts.mps_allocation_ok == facts.mps_simulated is True
    assert facts.cuda_count == torch.cuda.device_count()
    assert os.path.expanduser(facts.python_executable) == sys.executable
    assert facts.memory_bytes > 2**30
    assert facts.cache_free_bytes > 0
    assert facts.recommended_bytes > 0
    assert facts.packages["torch"] == version("torch")
    assert set(facts.packages) <= set(PACKAGES)
    assert MachineFacts.from_dict(json.loads(json.dumps(facts.to_dict()))) == facts


def test_the_home_folder_is_in_no_text_unless_it_is_everywhere(monkeypatch):
    monkeypatch.setenv("HOME", "/Users/jane")
    monkeypatch.setattr(sys, "executable", "/Users/jane/venv/bin/python")
    broken = raising(ImportError("dlopen(/Users/jane/venv/libtorch.dylib): see '/Users/jane' and /Users/janet/x"))
    facts = gathered(mac_report(import_torch=broken), {"CUDA_VISIBLE_DEVICES": "/Users/jane/x"}, report=True)
    assert facts.python_executable == "~/venv/bin/python"
    assert facts.torch_error == "ImportError: dlopen(~/venv/libtorch.dylib): see '~' and /Users/janet/x"
    assert facts.environment == {"CUDA_VISIBLE_DEVICES": "~/x"}
    assert "/Users/jane" not in facts.cache_folder
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    for home in ("/", "", "~"):
        monkeypatch.setenv("HOME", home)
        assert gathered(mac_report(), {}, report=True).python_executable == "/Users/jane/venv/bin/python"


@pytest.mark.parametrize("value", ["true", "", "on", " yes"])
def test_torch_is_not_loaded_with_a_switch_that_ends_the_process(value, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    environ = {"PYTORCH_ENABLE_MPS_FALLBACK": value}
    facts = gathered(mac_report(import_torch=asked("torch")), environ, report=True)
    assert facts.torch_version is None
    assert "a whole number for PYTORCH_ENABLE_MPS_FALLBACK" in facts.torch_error
    linux = mac_report(system=lambda: "Linux")
    assert gathered(linux, environ, report=True).torch_version == "2.9.0"


@pytest.mark.parametrize("value", [None, "0", "1", " 1", "-1", "1x"])
def test_a_switch_that_begins_with_a_number_is_read(value):
    assert not unreadable_switch(value)


class SysctlByName:
    """As much of libc as is needed: the value is copied out, and its size is told."""

    def __init__(self, values):
        self.values = values

    def sysctlbyname(self, name, value, size, new_value, new_size):
        assert new_value is None
        if name.decode() not in self.values:
            return -1
        content = self.values[name.decode()]
        if value is not None:
            ctypes.memmove(value, content, len(content))
        size._obj.value = len(content)
        return 0


def test_sysctls_are_read_at_their_own_width(monkeypatch):
    values = {
        "hw.memsize": (24 * 1024**3).to_bytes(8, sys.byteorder),
        "sysctl.proc_translated": (1).to_bytes(4, sys.byteorder),
        "machdep.cpu.brand_string": b"Apple M4 Max\0",
        "empty": b"\0",
    }
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SysctlByName(values))
    assert sysctl_int("hw.memsize") == 24 * 1024**3
    assert sysctl_int("sysctl.proc_translated") == 1
    assert sysctl_text("machdep.cpu.brand_string") == "Apple M4 Max"
    assert sysctl_text("empty") is None
    assert sysctl_int("kern.hv_vmm_present") is None
