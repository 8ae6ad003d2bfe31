"""Lists the published peaks of Apple's chips, for a bound on the time of a step."""

from __future__ import annotations

from typing import NamedTuple

from .step import StepCost


class Chip(NamedTuple):
    """A chip with all its GPU cores.

    Attributes:
        tflops: float32 operations of the GPU in 10^12 a second; None if they do not bound matrix products.
        bandwidth: of the memory, in 10^9 bytes a second.
    """

    tflops: float | None
    bandwidth: float


# Bandwidths: Apple's technical specifications of the Macs with each chip. TFLOPS of M1 and M2: the repository
# philipturner/metal-benchmarks (cores x 128 lanes x 2 x clock; float16 has the same rate). TFLOPS of M3 and M4:
# hardware.ts of huggingface/huggingface.js (pull request 1044). Its 18.4 for an M4 Max are above the 13.3 that
# device-benchmarks pull request 13 measured. The GPUs of M5 have matrix units, of which Apple publishes no rate
# (inference-atlas pull request 194): memory alone bounds them.
CHIPS = {
    "M1": Chip(2.6, 68.25),
    "M1 Pro": Chip(5.3, 200),
    "M1 Max": Chip(10.6, 400),
    "M1 Ultra": Chip(21.2, 800),
    "M2": Chip(3.6, 100),
    "M2 Pro": Chip(6.8, 200),
    "M2 Max": Chip(13.6, 400),
    "M2 Ultra": Chip(27.2, 800),
    "M3": Chip(4.1, 100),
    "M3 Pro": Chip(7.4, 150),
    "M3 Max": Chip(14.2, 400),
    "M3 Ultra": Chip(28.4, 819),
    "M4": Chip(4.6, 120),
    "M4 Pro": Chip(9.2, 273),
    "M4 Max": Chip(18.4, 546),
    "M5": Chip(None, 153),
    "M5 Pro": Chip(None, 307),
    "M5 Max": Chip(None, 614),
}


def least_seconds(chip: Chip, cost: StepCost) -> float:
    """Returns a time that no step can be faster than: all operations at the peak, or all bytes at full bandwidth."""
    computing = 0.0 if chip.tflops is None else cost.operations / (chip.tflops * 1e12)
    return max(computing, cost.bytes_moved / (chip.bandwidth * 1e9))
