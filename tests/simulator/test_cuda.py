"""PyTorch's build for CUDA can have the simulated device if CUDA is taken out of the process before its import."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from mps_trainer.simulator import SimulatorUnavailableError, build, cuda
from tests import HUNG_AFTER

CUDA_BUILD = pytest.mark.skipif(torch.version.cuda is None, reason="this torch is not built for CUDA")


@pytest.fixture
def nothing_hidden(monkeypatch):
    """As in a process that has not begun with the simulator, on a machine without an NVIDIA GPU."""
    monkeypatch.setattr(cuda, "_library", None)
    monkeypatch.setattr(cuda, "_failed", None)
    monkeypatch.setattr(cuda, "_GPUS", ())
    monkeypatch.setattr(build.platform, "system", lambda: "Linux")
    monkeypatch.setattr(cuda.ctypes, "CDLL", refuse)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")


def refuse(*arguments, **settings):
    raise OSError("no library is loaded here")


def test_a_build_for_the_cpu_is_left_as_it_is(nothing_hidden, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    for hide in (cuda.hide_cuda, cuda.hide_unused_cuda, cuda.require_hidden):
        hide()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"


def test_after_the_import_of_torch_one_line_says_what_to_do(nothing_hidden, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    cuda.hide_unused_cuda()
    with pytest.raises(SimulatorUnavailableError, match=r"Import mps_trainer\.simulator before torch") as refused:
        cuda.require_hidden()
    assert "\n" not in str(refused.value)


def test_what_fails_at_the_import_is_told_when_the_device_is_asked_for(nothing_hidden, monkeypatch, tmp_path):
    version = torch.version
    monkeypatch.setattr(version, "cuda", "13.2")
    monkeypatch.setattr(cuda, "torch_version", lambda: version)
    monkeypatch.setattr(cuda, "built", lambda sources, name: tmp_path / "library.so")
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "torch")
        cuda.hide_unused_cuda()
    with pytest.raises(SimulatorUnavailableError, match=r"no library is loaded here\. Delete "):
        cuda.require_hidden()


def test_a_machine_with_a_gpu_keeps_cuda_until_it_is_told(nothing_hidden, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(cuda, "_GPUS", (str(tmp_path),))
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "torch")
        cuda.hide_unused_cuda()
    assert cuda._failed is None
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"


def test_the_version_of_torch_is_read_without_importing_it(monkeypatch):
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "torch")
        version = build.torch_version()
        assert "torch" not in sys.modules
    assert (version.__version__, version.git_version) == (torch.__version__, torch.version.git_version)


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment},
        capture_output=True,
        text=True,
        timeout=HUNG_AFTER,
    )


GRADIENT = """
with simulated_mps():
    x = torch.ones(2, device="mps", requires_grad=True)
    (x * 2).sum().backward()
    print(torch.accelerator.current_accelerator(), x.grad.tolist())
"""


@CUDA_BUILD
@pytest.mark.integration
def test_a_build_for_cuda_has_the_device_when_the_simulator_comes_first():
    done = python(f"from mps_trainer.simulator import simulated_mps\nimport torch\n{GRADIENT}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "mps [2.0, 2.0]\n", "")


@CUDA_BUILD
@pytest.mark.integration
def test_a_build_for_cuda_that_came_first_is_told_in_one_line():
    done = python(f"import torch\nfrom mps_trainer.simulator import simulated_mps\n{GRADIENT}")
    assert done.returncode == 1
    assert "Import mps_trainer.simulator before torch" in done.stderr.splitlines()[-1]
