"""Tells which kernels the installed torch has on a device."""

from __future__ import annotations

import torch

from .facts import parse_version


def fused_adamw_divides_gradients(device: torch.device) -> bool:
    """Returns True if fused AdamW uses `grad_scale` and `found_inf`.

    mps took them and ignored them before 2.13 (pytorch pull request 186360): a scaler of float16 has to look itself.
    """
    return device.type in ("cpu", "cuda") or (device.type == "mps" and parse_version(torch.__version__) >= (2, 13))


def scales_gradients(device: torch.device) -> bool:
    """Returns True if `torch.amp.GradScaler`, which float16 needs, works there.

    On mps before 2.8 it asked for float64, and its kernels were missing (pytorch pull request 150255).
    """
    return device.type != "mps" or parse_version(torch.__version__) >= (2, 8)
