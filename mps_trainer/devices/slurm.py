"""Reads the rank of a process in a Slurm step from the variables that `srun` sets. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import MisconfigurationException

TASKS = "SLURM_STEP_NUM_TASKS"

# 20000 to 32767: above what services use, below what Linux gives to connections, which begin at 32768.
FIRST_PORT, PORTS = 20000, 12768
_MOST = 10**10  # no number of Slurm has more digits


def slurm_facts(environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns torchrun's facts for a process of a step, and that it is one of a step; {} outside of one.

    A step of one task is one process, and so is the shell of `sbatch` and `salloc`, which is in no step. `MASTER_ADDR`
    and `MASTER_PORT` go before the first host of the step and a port that follows from the job.

    Raises:
        MisconfigurationException: if one of Slurm's variables is missing, or is not what Slurm writes.
    """
    if TASKS not in environ:
        return {}
    try:
        size = _number(environ, TASKS, range(1, _MOST))
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
    except KeyError as error:
        why = f"{TASKS} is {environ[TASKS]!r}, and {error.args[0]} is not set"
    except ValueError as error:
        why = f"The environment variable {error}"
    raise MisconfigurationException(
        f"{why}, so this process does not know its rank in the Slurm step. Start the processes with srun, or with "
        f"torchrun, or unset {TASKS} to train in one process."
    )


def _tasks_here(environ: Mapping[str, str]) -> int:
    """Returns the number of tasks of this node: "2(x3),1" is two on each of the nodes 0 to 2, one on node 3."""
    name = "SLURM_STEP_TASKS_PER_NODE"
    node, tasks = _number(environ, "SLURM_NODEID"), environ[name]
    for part in tasks.split(","):
        match = re.fullmatch(r"([1-9][0-9]{0,8})(?:\(x([0-9]{1,9})\))?", part.strip())
        if match is None:
            break
        node -= int(match[2] or 1)
        if node < 0:
            return int(match[1])
    raise ValueError(f"{name} is {tasks!r}, which has no number such as 2(x3) for node {environ['SLURM_NODEID']}")


def _first_host(environ: Mapping[str, str]) -> str:
    """Returns the first host of a list: node03 for "node[03-05,07],gpu1"."""
    name = "SLURM_STEP_NODELIST"
    first = re.match(r"(?:[\w.-]|\[[0-9]+[0-9,-]*\])+(?=,|$)", environ[name])
    if first is None:
        raise ValueError(f"{name} is {environ[name]!r}, which is not a list of hosts such as node[03-05,07]")
    return re.sub(r"\[([0-9]+)[0-9,-]*\]", r"\1", first[0])


def _port(environ: Mapping[str, str]) -> int:
    """Returns a port that differs from job to job, and from step to step, whose addresses may still be in use."""
    step = _number(environ, "SLURM_STEP_ID") if "SLURM_STEP_ID" in environ else 0
    return FIRST_PORT + (_number(environ, "SLURM_JOB_ID") + 1000 * step) % PORTS


def _number(environ: Mapping[str, str], name: str, allowed: range = range(_MOST)) -> int:
    text = environ[name]
    if re.fullmatch(r"[0-9]{1,10}", text) is None or int(text) not in allowed:
        raise ValueError(f"{name} is {text!r}, which is not a whole number from {allowed[0]} to {allowed[-1]}")
    return int(text)
