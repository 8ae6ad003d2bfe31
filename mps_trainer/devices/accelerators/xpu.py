"""Intel GPUs."""

from __future__ import annotations

from ..facts import MachineFacts
from .base import Obstacle, torch_missing
from .gpu import GPUAccelerator


class XPUAccelerator(GPUAccelerator):
    kind = "xpu"
    label = "Intel GPU"
    backends = ("xccl", "ccl")

    @classmethod
    def why_not(cls, facts: MachineFacts) -> Obstacle | None:
        if facts.system == "Darwin":
            return Obstacle(
                "torch has no XPU build for macOS", "train on a Linux or Windows machine with an Intel Arc or Max GPU"
            )
        if facts.torch_version is None:
            return torch_missing(facts)
        if not facts.xpu_built:
            return Obstacle(
                f"torch {facts.torch_version} was built without XPU",
                "install the XPU build: python -m pip install torch --index-url https://download.pytorch.org/whl/xpu"
                if facts.intel_gpus
                else "train on a machine with an Intel Arc or Max GPU, with torch's XPU build",
            )
        if facts.xpu_count:
            return None
        hidden = facts.environment.get("ZE_AFFINITY_MASK")
        if hidden is not None:
            return Obstacle(f"ZE_AFFINITY_MASK={hidden!r} leaves no GPU visible", "unset ZE_AFFINITY_MASK")
        return Obstacle("torch finds no Intel GPU", "check that `sycl-ls` lists one; if not, install its driver")

    @classmethod
    def count(cls, facts: MachineFacts) -> int:
        return 0 if cls.why_not(facts) else facts.xpu_count

    @classmethod
    def precisions(cls, facts: MachineFacts) -> tuple[str, ...]:
        # Arc cards emulate fp64 or lack it, so it is not promised.
        return () if cls.why_not(facts) else ("fp32", "fp16", "bf16")
