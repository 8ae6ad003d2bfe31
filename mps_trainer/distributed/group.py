"""Sets up the process group from a launcher's variables. `devices` decides which devices support one."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from ..devices import ACCELERATORS
from ..errors import MisconfigurationException
from ..utils.text import sentence
from . import rank_monitor

if TYPE_CHECKING:
    from ..devices import Decision


def init_process_group(decision: Decision, backend: str | None, timeout: timedelta, host_too: bool = False) -> None:
    """Joins the processes that a launcher started, unless this process has joined already.

    Args:
        backend: of torch.distributed; None for the first of the device's that this torch has.
        host_too: whether tensors in host memory are exchanged as well, by gloo where the backend does not take them.

    Raises:
        MisconfigurationException: if this torch has no such backend, or none that takes tensors of the device, and
            if the others are not found.
    """
    import torch.distributed as dist

    if not dist.is_available():
        raise MisconfigurationException(
            f"{decision.world_size} processes were started, and this torch was built without torch.distributed. "
            "Install a build from PyPI, or start the script with plain python to train in one process."
        )
    if dist.is_initialized():
        return
    backend = _reaching(decision.type, backend)
    if host_too and "cpu" not in dist.Backend.backend_capability.get(backend, ["cpu"]):
        backend = f"cpu:gloo,{decision.type}:{backend}"
    try:
        place, rank, size = decision.meeting_point or "env://", decision.rank, decision.world_size
        store, rank, size = next(dist.rendezvous(place, rank, size, timeout=timeout))
        # The launcher's store still has the addresses of the processes before a restart, which torch 2.13 does not
        # keep apart, and gloo would try to connect to them.
        own = dist.PrefixStore(f"start-{decision.restarts}", store)
        dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=timeout)
    except MisconfigurationException:
        raise
    except (ValueError, dist.DistNetworkError, dist.DistStoreError) as error:
        raise MisconfigurationException(
            f"Process {decision.rank} of {decision.world_size} cannot join the others: {sentence(error)} Start all of "
            "them with one torchrun or srun, which say where they meet (MASTER_ADDR, MASTER_PORT), and see that the "
            "first machine can be reached there."
        ) from error
    atexit.register(leave)
    rank_monitor.attend(decision.rank, decision.world_size, decision.restarts)


def _reaching(device: str, asked: str | None) -> str:
    """Returns the requested backend, or the first that this torch has for the device."""
    import torch.distributed as dist

    names = ACCELERATORS[device].backends if asked is None else (asked.lower(),)
    if "mlx" in names:
        from . import mlx  # noqa: F401  adds the backend
    # A backend counts that torch was built with and that takes the device's tensors: either is said of others, too.
    able = [
        name
        for name, devices in dist.Backend.backend_capability.items()
        if device in devices and dist.is_backend_available(name)
    ]
    for name in names:
        if name in able:
            return name
    has = " and ".join(name for name in able if name in ACCELERATORS[device].backends) or "none"
    if asked is None:
        raise MisconfigurationException(
            f"Several processes cannot train on {device} with this torch, which has none of the backends "
            f"{', '.join(names)} of torch.distributed for it. Install a build of torch that has one, or start the "
            "script with plain python."
        )
    raise MisconfigurationException(
        f"ddp_backend={asked!r} cannot be used on {device}: of torch.distributed's backends, this torch has {has} for "
        "it. Take one of those, leave ddp_backend out, or import the package that adds the backend first."
    )


def leave() -> None:
    """Destroys the process group if it exists."""
    import torch.distributed as dist

    rank_monitor.leave()
    if dist.is_initialized():
        dist.destroy_process_group()


@contextlib.contextmanager
def first(is_first: bool, desc: str) -> Iterator[None]:
    """Runs the block in the process with `is_first` before all others."""
    import torch.distributed as dist

    def wait() -> None:
        with rank_monitor.absent_named(f"the barrier at {desc}"):
            dist.barrier()

    if not is_first:
        wait()
    try:
        yield
    finally:
        if is_first:
            wait()
