"""The process group, from torchrun's environment. Which devices may have one is decided in `devices`."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from ..devices import ACCELERATORS

if TYPE_CHECKING:
    from ..devices import Decision


def init_process_group(decision: Decision, backend: str | None, timeout: timedelta) -> None:
    """Joins the processes that a launcher started; does nothing where that was done already."""
    import torch.distributed as dist

    if dist.is_initialized():
        return
    backend = backend or ACCELERATORS[decision.type].backends[0]
    if decision.restarts:
        # The launcher's store still has the addresses of the processes before these, which torch 2.13 does not keep
        # apart, and gloo would try to connect to them.
        store, rank, size = next(dist.rendezvous("env://", timeout=timeout))
        again = dist.PrefixStore(f"restart-{decision.restarts}", store)
        dist.init_process_group(backend, store=again, rank=rank, world_size=size, timeout=timeout)
    else:
        dist.init_process_group(backend, timeout=timeout)
    atexit.register(leave)


def leave() -> None:
    """Parts from the other processes, if they have not parted."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


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
