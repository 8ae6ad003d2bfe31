"""Measures the time that a Trainer adds to DistributedDataParallel, per step in two processes on one machine."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any

from .benchmark import Benchmark, Entry, Figure, Options, Plan, Target
from .overhead import milliseconds_per_step
from .peers import PEERS, left_out
from .worker import measure_in_processes

PROCESSES = 2
MEASURED: tuple[str, ...] = ("bare", "bare-mlx", "ours", "transformers")
LABELS = {
    "bare": "bare PyTorch loop with DistributedDataParallel",
    "bare-mlx": "the same with ddp_backend mlx, not gloo",
}
LARGE = 25_000_000  # numbers of float32 in an all-reduce: 100 MB


def plan(options: Options) -> Plan:
    settings = {"steps": 40, "warm_up": 10} if options.quick else {"steps": 700, "warm_up": 100}
    peers = [name for name in MEASURED if name in options.peers]
    absent = left_out(peers)
    entries = {
        name: Entry(LABELS.get(name, PEERS[name].label), partial(_run, name, settings))
        for name in peers
        if name not in absent
    }
    return Plan(entries, {"processes": PROCESSES, **settings}, absent)


def _run(peer: str, settings: dict[str, Any], round_: int) -> dict[str, Any]:
    return measure_in_processes(PROCESSES, "distributed", peer=peer, **settings)[0]


def measure(peer: str, steps: int, warm_up: int, folder: str) -> dict[str, Any]:
    """In each of the processes: a BERT of two layers, batches of 8 in each."""
    import torch

    from .tasks import loss_after, small_bert

    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    model, task = small_bert(steps * processes, folder=folder, rank=rank, processes=processes)
    begun: list[float] = []

    def note(*_: Any) -> None:
        torch.manual_seed(len(begun))  # the same dropout for all
        begun.append(time.perf_counter())

    watch = model.register_forward_pre_hook(note)
    large = _train_replica(model, task, peer == "bare-mlx") if peer in LABELS else PEERS[peer].train()(model, task)
    watch.remove()
    learned = {"steps": len(begun), "loss": loss_after(model, task)}
    found = {"milliseconds_per_step": milliseconds_per_step(begun, warm_up), "learned": learned}
    return found if large is None else {**found, "milliseconds_of_all_reduce": large}


def _train_replica(model: Any, task: Any, over_mlx: bool) -> float:
    """The bare loop, as one makes it one of several processes by hand. Returns the milliseconds of an all-reduce."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    if over_mlx:
        from mps_trainer.distributed import mlx  # noqa: F401  adds the backend
    dist.init_process_group("mlx" if over_mlx else "gloo")
    PEERS["bare"].train()(DistributedDataParallel(model), task)
    numbers, seconds = torch.ones(LARGE), []
    for _ in range(8):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(numbers)
        seconds.append(time.perf_counter() - start)
    dist.destroy_process_group()
    return 1000 * min(seconds)


BENCHMARK = Benchmark(
    title="Overhead over DistributedDataParallel: a step in two processes",
    figures=(
        Figure("milliseconds_per_step", "ms a step", digits=2, ratio=True, chart=True),
        Figure("milliseconds_of_all_reduce", "ms of an all-reduce of 100 MB", digits=0, ratio=True),
    ),
    plan=plan,
    rounds=7,
    baseline="bare",
    targets=(
        Target("ours", "milliseconds_per_step", 1.05, of_ratio=True),
        Target("bare-mlx", "milliseconds_per_step", 1.1, of_ratio=True),
    ),
)
