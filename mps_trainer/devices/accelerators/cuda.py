"""NVIDIA GPUs, and AMD GPUs in a ROCm build of torch, which shows them under the same name."""

from __future__ import annotations

from ..facts import MachineFacts
from .base import Obstacle, torch_missing
from .gpu import GPUAccelerator


class CUDAAccelerator(GPUAccelerator):
    kind = "cuda"
    label = "CUDA GPU"
    backends = ("nccl", "gloo")

    @classmethod
    def why_not(cls, facts: MachineFacts) -> Obstacle | None:
        if facts.system == "Darwin":
            return Obstacle("CUDA does not exist on macOS", "train on a Linux or Windows machine with an NVIDIA GPU")
        if facts.torch_version is None:
            return torch_missing(facts)
        if not facts.cuda_built:
            return Obstacle(
                f"torch {facts.torch_version} was built without CUDA",
                "on a machine with an NVIDIA GPU install a CUDA build of torch (the selector on pytorch.org has the "
                "command)",
            )
        if facts.cuda_count:
            return None
        hidden = facts.environment.get("CUDA_VISIBLE_DEVICES")
        if hidden is not None:
            return Obstacle(f"CUDA_VISIBLE_DEVICES={hidden!r} leaves no GPU visible", "unset CUDA_VISIBLE_DEVICES")
        return Obstacle("torch finds no NVIDIA GPU", "check that `nvidia-smi` lists one; if not, install its driver")

    @classmethod
    def count(cls, facts: MachineFacts) -> int:
        return 0 if cls.why_not(facts) else facts.cuda_count

    @classmethod
    def precisions(cls, facts: MachineFacts) -> tuple[str, ...]:
        # bfloat16 works on every card and is fast from compute capability 8.0 on; asking which one this is would
        # create a context on the GPU, in processes that may not use it.
        return () if cls.why_not(facts) else ("fp32", "fp16", "bf16", "fp64")
