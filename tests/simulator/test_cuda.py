"""PyTorch's build for CUDA can have the simulated device if CUDA is taken out of the process before its import."""

import os
import sys
from unittest import mock

import pytest
import torch

from mps_trainer.tools.simulator import SimulatorUnavailableError, build, cuda
from tests import run_python
from tests.conftest import refusal


@pytest.fixture
def hide(monkeypatch, tmp_path):
    """`hide(...)` hides CUDA in a process that has not imported torch, and returns what the device says later."""
    monkeypatch.setattr(cuda, "_library", None)
    monkeypatch.setattr(cuda, "_failed", None)
    monkeypatch.setattr(build.platform, "system", lambda: "Linux")
    monkeypatch.setattr(cuda.ctypes, "CDLL", mock.Mock(side_effect=OSError("no library is loaded here")))
    monkeypatch.setattr(cuda, "built", lambda sources, name: tmp_path / "library.so")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")

    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(cuda, "torch_version", lambda found=torch.version: found)

    def run(*gpus):
        monkeypatch.setattr(cuda, "_GPUS", gpus)
        with monkeypatch.context() as patch:
            patch.delitem(sys.modules, "torch._C")  # an import of torch loads it late
            cuda.hide_unused_cuda()
        return refusal(cuda.hide_cuda, kind=SimulatorUnavailableError)

    return run


def test_cuda_is_taken_out_of_the_process_where_it_has_to_be(hide, tmp_path):
    said = hide(str(tmp_path))  # a machine with a GPU keeps CUDA until the device is asked for
    assert "Import mps_trainer.simulator before torch" in said
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
    assert "no library is loaded here. Delete " in hide()


def test_the_version_of_torch_is_read_without_importing_it(monkeypatch):
    with monkeypatch.context() as patch:
        for name in ("torch", "torch.version"):
            patch.delitem(sys.modules, name)
        version = build.torch_version()
        assert not {"torch", "torch.version"} & set(sys.modules)
    assert (version.__version__, version.git_version) == (torch.__version__, torch.version.git_version)


GRADIENT = """
with simulated_mps():
    x = torch.ones(2, device="mps", requires_grad=True)
    (x * 2).sum().backward()
    print(torch.accelerator.current_accelerator(), x.grad.tolist())
"""


OURS = "from mps_trainer.simulator import simulated_mps\n"


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch is not built for CUDA")
@pytest.mark.integration
def test_a_build_for_cuda_has_the_device_when_the_simulator_comes_first_and_says_so_otherwise():
    done = run_python("-c", f"{OURS}import torch\n{GRADIENT}", CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stdout, done.stderr) == (0, "mps [2.0, 2.0]\n", "")
    done = run_python("-c", f"import torch\n{OURS}{GRADIENT}", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    assert "Import mps_trainer.simulator before torch" in done.stderr.splitlines()[-1]
