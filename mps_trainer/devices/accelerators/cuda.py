"""NVIDIA GPUs, and AMD GPUs in a ROCm build of torch, which shows them under the same name."""

from __future__ import annotations

from ...utils.text import counted
from ..facts import MachineFacts
from .base import Obstacle
from .gpu import GPUAccelerator


class CUDAAccelerator(GPUAccelerator):
    kind = "cuda"
    label = "CUDA GPU"
    backends = ("nccl", "gloo")
    # bfloat16 works on every card and is fast from compute capability 8.0 on; asking which one this is would create a
    # context on the GPU, in processes that may not use it.
    formats = ("fp32", "fp16", "bf16", "fp64")
    visible_variable = "CUDA_VISIBLE_DEVICES"
    not_on_macos = Obstacle("CUDA does not exist on macOS", "train on a Linux or Windows machine with an NVIDIA GPU")

    @classmethod
    def none_found(cls, facts: MachineFacts) -> Obstacle:
        driver = f"NVIDIA's driver lists {counted(facts.nvidia_gpus or 0, 'GPU')}"
        if not facts.cuda_built:
            cause = f"torch {facts.torch_version} was built without CUDA"
            if facts.nvidia_gpus:
                return Obstacle(
                    f"{driver}, and {cause}",
                    "install a build with CUDA, as PyPI's for Linux is: python -m pip install --force-reinstall torch",
                    True,
                    cls.kind,
                )
            return Obstacle(
                cause,
                "on a machine with an NVIDIA GPU install a CUDA build of torch (the selector on pytorch.org has the "
                "command)",
            )
        if (hidden := cls.hidden(facts, bool(facts.nvidia_gpus))) is not None:
            return hidden
        if facts.nvidia_gpus:
            return Obstacle(
                f"{driver}, and torch finds none",
                "see that `nvidia-smi` lists them and that the driver is new enough; a container needs --gpus all",
                True,
                cls.kind,
            )
        return Obstacle("torch finds no NVIDIA GPU", "check that `nvidia-smi` lists one; if not, install its driver")
