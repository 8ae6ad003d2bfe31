"""Advises which number format trains fastest on a machine.

The figures are of a step of MiniLM with 16 texts of 64 tokens on one thread (torch 2.13, an AMD EPYC with
AVX512-BF16, 2026-11-23): 1.07 s in float32 and 0.60 s under autocast to bfloat16. With `ONEDNN_MAX_CPU_ISA`, which
hides instructions, bfloat16 took 2.28 s instead of 1.28 s (AVX-512 without BF16), and 12.8 s instead of 1.16 s (AVX2).
"""

from __future__ import annotations

SLOW_BFLOAT16 = (
    "this processor has no instructions for bfloat16, and takes 1.8 times as long as in float32 with AVX-512, "
    "11 times with AVX2"
)


def precision_advice(kind: str, cpu_bfloat16: bool | None) -> str | None:
    """Returns a clause about the fastest number format; None where nothing was measured, as on Apple hardware.

    Args:
        kind: of the device: "cpu", "mps", "cuda", "xpu".
        cpu_bfloat16: whether the processor multiplies bfloat16; None if unknown.
    """
    if kind != "cpu" or cpu_bfloat16 is None:
        return None
    if cpu_bfloat16:
        return "bf16=True is faster: this processor has instructions for bfloat16, and takes 0.6 of the time"
    return f"float32 is faster: {SLOW_BFLOAT16}"
