"""Reads the rank of this process from the variables of its launcher: torchrun, `srun` or `mlx.launch`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from ..errors import MisconfigurationException

# Set by torchrun for every process it starts; each with the smallest value that makes sense.
LAUNCHER_INTEGERS = {
    "WORLD_SIZE": 1,
    "RANK": 0,
    "LOCAL_RANK": 0,
    "LOCAL_WORLD_SIZE": 1,
    "MASTER_PORT": 0,
    "TORCHELASTIC_RESTART_COUNT": 0,
}
_MOST = 10**10  # no number of a launcher has more digits

SLURM_TASKS = "SLURM_STEP_NUM_TASKS"
# 20000 to 32767: above what services use, below what Linux gives to connections, which begin at 32768.
FIRST_PORT, PORTS = 20000, 12768

# Values with which scripts, notebooks and IDEs say that there is one process, as torch and Accelerate read them.
_ONE_PROCESS = {"RANK": ("-1",), "LOCAL_RANK": ("-1",), "WORLD_SIZE": ("0", "-1"), "LOCAL_WORLD_SIZE": ("0", "-1")}

MLX_RANK = "MLX_RANK"
_HOST_FILE = "MLX_HOSTFILE"  # over TCP: a file with the addresses of each process, [["10.0.0.1:32323"], ...]
_COORDINATOR, _RDMA = "MLX_JACCL_COORDINATOR", "MLX_IBV_DEVICES"  # over RDMA: an address of the first process, a file


def launcher_facts(environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns the number of processes, the place of this one and their meeting point; None for what is not set.

    An empty variable counts as not set. A rank of -1 or a size of 0 says that there is one process: no variable of
    torchrun counts then.

    Raises:
        MisconfigurationException: if a variable is not what its launcher writes.
    """
    environ = {name: value for name, value in environ.items() if value.strip()}
    if any(environ.get(name, "").strip() in values for name, values in _ONE_PROCESS.items()):
        environ = {name: value for name, value in environ.items() if name not in LAUNCHER_INTEGERS}
    facts: dict[str, Any] = {"master_addr": environ.get("MASTER_ADDR")}
    for name, smallest in LAUNCHER_INTEGERS.items():
        facts[name.lower()] = _number(environ, name, range(smallest, _MOST)) if name in environ else None
    for rank, size in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
        if rank in environ and size in environ and facts[rank.lower()] >= facts[size.lower()]:
            raise _wrong(environ, rank, f"is not below {size}={environ[size]}")
    if facts["rank"] is None:
        step = slurm_facts(environ) or _mlx_facts(environ)
        # WORLD_SIZE of another number than the launcher's is meant for something else, and 1 for a process of its own.
        if step and facts["world_size"] in (None, step["world_size"]):
            facts.update(step)
    return facts


def process_number() -> int:
    """Returns the rank of this process, from 0, before torch is loaded; 0 where the variables are wrong."""
    try:
        return launcher_facts(os.environ)["rank"] or 0
    except MisconfigurationException:
        return 0


def slurm_facts(environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns torchrun's facts for a process of a step, and that it is one of a step; {} outside of one.

    A step of one task is one process, and so is the shell of `sbatch` and `salloc`, which is in no step. `MASTER_ADDR`
    and `MASTER_PORT` go before the first host of the step and a port that follows from the job.
    """
    size = _number(environ, SLURM_TASKS, range(1, _MOST)) if SLURM_TASKS in environ else 1
    if size == 1:
        return {}
    rank, here = _number(environ, "SLURM_PROCID", range(size)), _tasks_here(environ)
    return {
        "slurm": True,
        "world_size": size,
        "rank": rank,
        "local_rank": _number(environ, "SLURM_LOCALID", range(here)),
        "local_world_size": here,
        "master_addr": environ.get("MASTER_ADDR") or _first_host(environ),
        "master_port": _number(environ, "MASTER_PORT") if "MASTER_PORT" in environ else _port(environ),
    }


def _tasks_here(environ: Mapping[str, str]) -> int:
    """Returns the number of tasks of this node: "2(x3),1" is two on each of the nodes 0 to 2, one on node 3."""
    name, node = "SLURM_STEP_TASKS_PER_NODE", _number(environ, "SLURM_NODEID")
    for part in environ.get(name, "").split(","):
        match = re.fullmatch(r"([1-9][0-9]{0,8})(?:\(x([0-9]{1,9})\))?", part.strip())
        if match is None:
            break
        node -= int(match[2] or 1)
        if node < 0:
            return int(match[1])
    raise _wrong(environ, name, f"has no number such as 2(x3) for node {environ['SLURM_NODEID']}")


def _first_host(environ: Mapping[str, str]) -> str:
    """Returns the first host of a list: node03 for "node[03-05,07],gpu1"."""
    name = "SLURM_STEP_NODELIST"
    first = re.match(r"(?:[\w.-]|\[[0-9]+[0-9,-]*\])+(?=,|$)", environ.get(name, ""))
    if first is None:
        raise _wrong(environ, name, "is not a list of hosts such as node[03-05,07]")
    return re.sub(r"\[([0-9]+)[0-9,-]*\]", r"\1", first[0])


def _port(environ: Mapping[str, str]) -> int:
    """Returns a port that differs from job to job, and from step to step, whose addresses may still be in use."""
    step = _number(environ, "SLURM_STEP_ID") if "SLURM_STEP_ID" in environ else 0
    return FIRST_PORT + (_number(environ, "SLURM_JOB_ID") + 1000 * step) % PORTS


def _number(environ: Mapping[str, str], name: str, allowed: range = range(_MOST)) -> int:
    text = environ.get(name, "")
    if re.fullmatch(r"[0-9]{1,10}", text) is None or int(text) not in allowed:
        raise _wrong(environ, name, f"is not a whole number from {allowed[0]} to {allowed[-1]}")
    return int(text)


def _wrong(environ: Mapping[str, str], name: str, why: str) -> MisconfigurationException:
    value = f"is {environ[name]!r}, which {why}" if name in environ else "is not set"
    remedy = "torchrun sets it for the processes it starts; unset it to train in one process, or start with torchrun."
    if SLURM_TASKS in environ and not LAUNCHER_INTEGERS.keys() & {name}:
        remedy = f"Start the processes with srun, or with torchrun, or unset {SLURM_TASKS} to train in one process."
    return MisconfigurationException(
        f"The environment variable {name} {value}, so this process does not know its place among the others. {remedy}"
    )


def _mlx_facts(environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns torchrun's facts for a process of `mlx.launch`, and that it is one; {} for another or a single process.

    The processes meet at the address of the first one, at the port before MLX's, or at `MASTER_PORT`.
    """
    name = _HOST_FILE if _HOST_FILE in environ else _RDMA
    if MLX_RANK not in environ or name not in environ:
        return {}
    try:
        with open(environ[name], encoding="utf-8") as file:
            text = file.read()
        processes = json.loads(text) if text.strip() else []
        if len(processes) < 2:
            return {}
        addresses = [each[0].rpartition(":") for each in processes] if name == _HOST_FILE else []
        first, _, port = addresses[0] if addresses else environ[_COORDINATOR].rpartition(":")
        rank, master_port = int(environ[MLX_RANK]), int(environ.get("MASTER_PORT", int(port) - 1))
        here = [i for i, (host, *_) in enumerate(addresses) if host == addresses[rank][0]] or [rank]
        place = here.index(rank)
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise MisconfigurationException(
            f"{MLX_RANK} is {environ[MLX_RANK]!r}, as mlx.launch sets it, but its other variables do not fit "
            f"({error}). Start the processes with mlx.launch or torchrun, or unset {MLX_RANK} to train in one process."
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
