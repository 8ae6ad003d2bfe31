"""A report asks for chip, memory, disk and versions; a run does not."""

from __future__ import annotations

import json
import sys

import pytest

from mps_trainer import MachineFacts, gather_facts
from mps_trainer.devices.facts import PACKAGES, gather_all_facts
from mps_trainer.devices.probes import Probes, _mlx_backends, sysctl_int, sysctl_text, unreadable_switch
from tests.devices.test_facts import fake_torch, mac_probes, raising


def asked(name):
    def probe(*args):
        pytest.fail(f"{name} was asked")

    return probe


REPORT_PROBES = (
    "sysctl_text",
    "memory",
    "version_of",
    "free_bytes",
    "names_in",
    "cpuinfo",
    "recommended_bytes",
    "mlx_backends",
)


def test_a_run_does_not_ask_what_only_a_report_wants():
    facts = gather_facts(mac_probes(**{name: asked(name) for name in REPORT_PROBES}), {})
    assert (facts.chip, facts.memory_bytes, facts.cache_free_bytes, facts.packages) == (None, None, None, {})


def mac_report(**changes):
    return mac_probes(
        {},
        **{
            "sysctl_text": {"machdep.cpu.brand_string": "Apple M3 Pro", "hw.model": "Mac15,6"}.get,
            "memory": lambda: 18 * 1024**3,
            "version_of": {"torch": "2.9.0", "transformers": "5.0.0"}.get,
            "free_bytes": lambda folder: 7,
            "names_in": lambda folder: [],
            "recommended_bytes": lambda: 12 * 1024**3,
            "mlx_backends": asked("MLX"),
            **changes,
        },
    )


def test_the_report_of_a_mac():
    facts = gather_all_facts(mac_report(), {})
    assert (facts.chip, facts.model, facts.nvidia_gpus) == ("Apple M3 Pro", "Mac15,6", None)
    assert (facts.memory_bytes, facts.recommended_bytes) == (18 * 1024**3, 12 * 1024**3)
    assert (facts.conda, facts.cache_free_bytes) == (False, 7)
    assert facts.packages == {"torch": "2.9.0", "transformers": "5.0.0"}


def test_the_report_of_a_mac_names_the_backends_of_mlx():
    versions = {"mlx": "0.32.4"}.get
    facts = gather_all_facts(mac_report(version_of=versions, mlx_backends=lambda: "ring, jaccl"), {})
    assert (facts.mlx, facts.mlx_backends) == (True, "ring, jaccl")


def test_the_backends_of_mlx_on_this_machine(monkeypatch):
    pytest.importorskip("mlx.core")
    assert _mlx_backends().startswith("ring")
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    assert _mlx_backends() is None


def test_metal_recommends_nothing_where_mps_does_not_work():
    torch = fake_torch(available=False)
    facts = gather_all_facts(mac_report(import_torch=lambda: torch, recommended_bytes=asked("Metal")), {})
    assert facts.recommended_bytes is None


def test_the_report_of_a_linux_machine():
    folders = {"/proc/driver/nvidia/gpus": ["0000:01:00.0", "0000:02:00.0"], sys.prefix: ["bin", "conda-meta"]}
    probes = Probes(
        system=lambda: "Linux",
        import_torch=raising(ImportError("none")),
        names_in=lambda folder: folders.get(folder, []),
        cpuinfo=lambda *names: {"model name": "AMD EPYC", "flags": "sse2 avx512_bf16"}[names[0]],
        sysctl=asked("sysctl"),
        sysctl_text=asked("sysctl"),
    )
    facts = gather_all_facts(probes, {})
    assert (facts.chip, facts.nvidia_gpus, facts.conda) == ("AMD EPYC", 2, True)
    assert facts.cpu_bfloat16 is True


def test_the_report_of_this_machine(tmp_path, monkeypatch):
    from importlib.metadata import version

    monkeypatch.setenv("MPS_TRAINER_CACHE", str(tmp_path / "not" / "there" / "yet"))
    facts = gather_all_facts()
    assert facts.memory_bytes > 2**30
    assert facts.cache_free_bytes > 0
    assert facts.packages["torch"] == version("torch")
    assert set(facts.packages) <= set(PACKAGES)
    assert MachineFacts.from_dict(json.loads(json.dumps(facts.to_dict()))) == facts


def test_metal_on_the_simulated_device_recommends_something(mps):
    assert gather_all_facts().recommended_bytes > 0


def test_the_home_folder_is_in_no_text(monkeypatch):
    monkeypatch.setenv("HOME", "/Users/jane")
    monkeypatch.setattr(sys, "executable", "/Users/jane/venv/bin/python")
    broken = raising(ImportError("dlopen(/Users/jane/venv/libtorch.dylib): see '/Users/jane' and /Users/janet/x"))
    facts = gather_all_facts(mac_report(import_torch=broken), {"CUDA_VISIBLE_DEVICES": "/Users/jane/x"})
    assert facts.python_executable == "~/venv/bin/python"
    assert facts.torch_error == "ImportError: dlopen(~/venv/libtorch.dylib): see '~' and /Users/janet/x"
    assert facts.environment == {"CUDA_VISIBLE_DEVICES": "~/x"}
    assert "/Users/jane" not in facts.cache_folder


@pytest.mark.parametrize("home", ["/", "", "~"])
def test_a_home_folder_that_is_everywhere_is_left(home, monkeypatch):
    monkeypatch.setenv("HOME", home)
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    assert gather_all_facts(mac_report(), {}).python_executable == "/usr/bin/python3"


@pytest.mark.parametrize("value", ["true", "", "on", " yes"])
def test_torch_is_not_loaded_with_a_switch_that_ends_the_process(value):
    environ = {"PYTORCH_ENABLE_MPS_FALLBACK": value}
    facts = gather_all_facts(mac_report(import_torch=asked("torch")), environ)
    assert facts.torch_version is None
    assert "a whole number for PYTORCH_ENABLE_MPS_FALLBACK" in facts.torch_error
    linux = mac_report(system=lambda: "Linux")
    assert gather_all_facts(linux, environ).torch_version == "2.9.0"


@pytest.mark.parametrize("value", [None, "0", "1", " 1", "-1", "1x"])
def test_a_switch_that_begins_with_a_number_is_read(value):
    assert not unreadable_switch(value)


class SysctlByName:
    """As much of libc as is needed: the value is copied out, and its size is told."""

    def __init__(self, values):
        self.values = values

    def sysctlbyname(self, name, value, size, new_value, new_size):
        import ctypes

        assert new_value is None
        if name.decode() not in self.values:
            return -1
        content = self.values[name.decode()]
        if value is not None:
            ctypes.memmove(value, content, len(content))
        size._obj.value = len(content)
        return 0


def test_sysctls_are_read_at_their_own_width(monkeypatch):
    import ctypes

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
