"""Refuses backends of torch.distributed, and several processes, that the chosen device cannot use. Pure.

Each accelerator lists its backends; mps has none, so gloo, nccl and several processes are refused there.
"""

from __future__ import annotations

from ..errors import MisconfigurationException
from .accelerators import ACCELERATORS, Accelerator
from .facts import MachineFacts


def refuse_backend(chosen: type[Accelerator], backend: str | None) -> None:
    """Raises MisconfigurationException if `backend`, a `ddp_backend`, cannot be used on the chosen device."""
    if backend is None or backend in chosen.backends:
        return
    if not chosen.backends:
        raise _one_process_only(f"ddp_backend={backend!r} was requested")
    needs = " or ".join(name for name, kind in ACCELERATORS.items() if backend in kind.backends)
    why = f"it needs {needs}" if needs else "no accelerator of this package uses it"
    raise MisconfigurationException(
        f"ddp_backend={backend!r} cannot be used on {chosen.kind}: {why}. "
        f"Take one of {', '.join(map(repr, chosen.backends))}, or leave ddp_backend out."
    )


def refuse_processes(chosen: type[Accelerator], facts: MachineFacts) -> None:
    """Raises MisconfigurationException if the processes that a launcher started cannot train on the chosen device."""
    processes = facts.world_size or 1
    if processes == 1 or chosen.kind == "cpu":
        return
    if not chosen.backends:
        raise _one_process_only(f"The launcher started {processes} processes (WORLD_SIZE={processes})")
    if facts.local_rank is None:
        raise MisconfigurationException(
            f"WORLD_SIZE is {processes} and LOCAL_RANK is not set, so this process cannot tell which "
            f"{chosen.label} is its own. Start with torchrun, which sets both, or unset WORLD_SIZE."
        )


def _one_process_only(what: str) -> MisconfigurationException:
    return MisconfigurationException(
        f"{what}, and the device is mps: mps trains on one device in one process, because a Mac has one GPU and no "
        f"torch.distributed backend reaches it. Either run the script with plain python, without a launcher and "
        f"without ddp_backend, or train with several processes on the CPU: use_cpu=True with ddp_backend='gloo'."
    )
