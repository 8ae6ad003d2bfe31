"""The process group, from torchrun's environment. Which devices may have one is decided in `devices`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .devices import Decision

_DEFAULT_BACKEND = {"cuda": "nccl", "xpu": "xccl", "cpu": "gloo"}


def init_process_group(decision: Decision, backend: str | None, timeout: timedelta) -> None:
    """Joins the processes that a launcher started; does nothing where that was done already."""
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group(backend or _DEFAULT_BACKEND[decision.type], timeout=timeout)


@contextlib.contextmanager
def first(is_first: bool, desc: str) -> Iterator[None]:
    """The process for which `is_first` holds does the block before all others."""
    import torch.distributed as dist

    if not is_first:
        dist.barrier()
    try:
        yield
    finally:
        if is_first:
            dist.barrier()
