"""Which kernels the installed torch has on a device, where its own code does not ask."""

from __future__ import annotations

import torch


def _release() -> tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def fused_adamw_divides_gradients(device: torch.device) -> bool:
    """Whether fused AdamW heeds `grad_scale` and `found_inf`.

    mps took them and ignored them before 2.13 (pytorch pull request 186360): a scaler of float16 has to look itself.
    """
    return device.type in ("cpu", "cuda") or (device.type == "mps" and _release() >= (2, 13))


def scales_gradients(device: torch.device) -> bool:
    """True if `torch.amp.GradScaler`, which float16 needs, works there.

    On mps before 2.8 it asked for float64, and its kernels were missing (pytorch pull request 150255).
    """
    return device.type != "mps" or _release() >= (2, 8)


def dropout_is_one_kernel(device: torch.device) -> bool:
    """Whether `torch.native_dropout` is one kernel where `nn.Dropout` is three (pytorch pull request 182232)."""
    return device.type == "mps" and _release() >= (2, 13)
