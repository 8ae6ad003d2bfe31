"""Intel GPUs."""

from __future__ import annotations

from ..facts import MachineFacts
from .base import Obstacle
from .gpu import GPUAccelerator


class XPUAccelerator(GPUAccelerator):
    kind = "xpu"
    label = "Intel GPU"
    backends = ("xccl", "ccl")
    formats = ("fp32", "fp16", "bf16")  # Arc cards emulate fp64 or lack it, so it is not promised
    visible_variable = "ZE_AFFINITY_MASK"
    not_on_macos = Obstacle(
        "torch has no XPU build for macOS", "train on a Linux or Windows machine with an Intel Arc or Max GPU"
    )

    @classmethod
    def none_found(cls, facts: MachineFacts) -> Obstacle:
        if not facts.xpu_built:
            return Obstacle(
                f"torch {facts.torch_version} was built without XPU",
                "install the XPU build: python -m pip install torch --index-url https://download.pytorch.org/whl/xpu"
                if facts.intel_gpus
                else "train on a machine with an Intel Arc or Max GPU, with torch's XPU build",
            )
        # an XPU build was chosen on purpose, so doctor tells of it
        remedy = "check that `sycl-ls` lists an Intel GPU; if not, install its driver"
        return cls.hidden(facts) or Obstacle("torch finds no Intel GPU", remedy, name=cls.kind)

    @classmethod
    def divides_gradients(cls, torch_version: str) -> bool:
        return False
