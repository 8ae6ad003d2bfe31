"""The process group, from torchrun's environment. Which devices may have one is decided in `devices`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from .devices import ACCELERATORS
from .errors import MisconfigurationException

if TYPE_CHECKING:
    from .devices import Decision


def init_process_group(decision: Decision, backend: str | None, timeout: timedelta) -> None:
    """Joins the processes that a launcher started; does nothing where that was done already."""
    import torch.distributed as dist

    if not dist.is_initialized():
        preferred = ACCELERATORS[decision.type].backends[0]
        dist.init_process_group(backend or preferred, timeout=timeout)


def require_one_process(world_size: int) -> None:
    """Raises MisconfigurationException for several: each would train alone, and all would write into one folder."""
    if world_size > 1:
        raise MisconfigurationException(
            f"{world_size} processes were started, and this release trains in one: it would train {world_size} times "
            "into the same folder. Start the script with python, without a launcher."
        )


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
