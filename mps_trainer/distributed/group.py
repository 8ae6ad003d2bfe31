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

    def has(name: str) -> bool:
        # Either check alone accepts unusable backends: not built into this torch, or for another device.
        return device in dist.Backend.backend_capability.get(name, ()) and dist.is_backend_available(name)

    names = ACCELERATORS[device].backends if asked is None else (asked.lower(),)
    for name in names:
        if name == "mlx":
            _add_mlx(device, asked, is_needed=len(names) == 1)
        if has(name):
            return name
    if asked is None:
        raise MisconfigurationException(
            f"Several processes cannot train on {device} with this torch, which has none of the backends "
            f"{', '.join(names)} of torch.distributed for it. Install a build of torch that has one, or start the "
            "script with plain python."
        )
    usable = " and ".join(filter(has, ACCELERATORS[device].backends)) or "none"
    raise MisconfigurationException(
        f"ddp_backend={asked!r} cannot be used on {device}: of torch.distributed's backends, this torch has {usable} "
        "for it. Use one of them, leave ddp_backend out, or first import the package that adds the backend."
    )


def _add_mlx(device: str, asked: str | None, is_needed: bool) -> None:
    """Adds MLX's backend to torch.distributed if MLX, an optional package, is installed.

    Raises MisconfigurationException if `is_needed` and MLX cannot be imported.
    """
    try:
        from . import mlx  # noqa: F401
    except ImportError as error:
        if is_needed:
            needs = f"Several processes on {device} need" if asked is None else f"ddp_backend={asked!r} needs"
            raise MisconfigurationException(
                f"{needs} MLX, which cannot be loaded: {sentence(error)} On each machine: python -m pip install -U "
                "'mps_trainer[several-macs]'."
            ) from error


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
