"""Reads the rank of a process that `mlx.launch` started from the variables that it sets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..errors import MisconfigurationException

RANK = "MLX_RANK"
_HOST_FILE = "MLX_HOSTFILE"  # over TCP: a file with the addresses of each process, [["10.0.0.1:32323"], ...]
_COORDINATOR, _RDMA = "MLX_JACCL_COORDINATOR", "MLX_IBV_DEVICES"  # over RDMA: an address of the first process, a file


def mlx_launch_facts(environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns torchrun's facts for a process of `mlx.launch`, and that it is one; {} for another or a single process.

    The processes meet at the address of the first one, at the port before that of MLX or at `MASTER_PORT`.

    Raises:
        MisconfigurationException: if a variable or its file is not what `mlx.launch` writes.
    """
    name = _HOST_FILE if _HOST_FILE in environ else _RDMA
    if RANK not in environ or name not in environ:
        return {}
    try:
        with open(environ[name], encoding="utf-8") as file:
            text = file.read()
        processes = json.loads(text) if text.strip() else []
        if len(processes) < 2:
            return {}
        addresses = [each[0].rpartition(":") for each in processes] if name == _HOST_FILE else []
        first, _, port = addresses[0] if addresses else environ[_COORDINATOR].rpartition(":")
        rank, master_port = int(environ[RANK]), int(environ.get("MASTER_PORT", int(port) - 1))
        here = [i for i, (host, *_) in enumerate(addresses) if host == addresses[rank][0]] or [rank]
        place = here.index(rank)
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise MisconfigurationException(
            f"{RANK} is {environ[RANK]!r}, as mlx.launch sets it, but its other variables do not fit ({error}). Start "
            f"the processes with mlx.launch or torchrun, or unset {RANK} to train in one process."
        ) from error
    return {
        "mlx_launch": True,
        "world_size": len(processes),
        "rank": rank,
        "local_rank": place,
        "local_world_size": len(here),
        "master_addr": first,
        "master_port": master_port,
    }
