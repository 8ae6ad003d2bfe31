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
MEASURED: tuple[str, ...] = ("bare", "ours", "transformers")
LABELS = {"bare": "bare PyTorch loop with DistributedDataParallel"}


def plan(options: Options) -> Plan:
    settings = {"steps": 40, "warm_up": 10} if options.quick else {"steps": 700, "warm_up": 100}
    peers = [name for name in MEASURED if name in options.peers]
    absent = left_out(peers)
    entries = {
        name: Entry(LABELS.get(name, PEERS[name].label), partial(_run, name, settings))
        for name in peers
        if name not in absent
    }
    return Plan(entries, {"processes": PROCESSES, "backend": "gloo", **settings}, absent)


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
    (_train_replica if peer == "bare" else PEERS[peer].train())(model, task)
    watch.remove()
    learned = {"steps": len(begun), "loss": loss_after(model, task)}
    return {"milliseconds_per_step": milliseconds_per_step(begun, warm_up), "learned": learned}


def _train_replica(model: Any, task: Any) -> None:
    """The bare loop, as one makes it one of several processes by hand."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    PEERS["bare"].train()(DistributedDataParallel(model), task)
    dist.destroy_process_group()


BENCHMARK = Benchmark(
    title="Overhead over DistributedDataParallel: a step in two processes",
    figures=(Figure("milliseconds_per_step", "ms a step", digits=2, ratio=True, chart=True),),
    plan=plan,
    rounds=7,
    baseline="bare",
    targets=(Target("ours", "milliseconds_per_step", 1.05, of_ratio=True),),
)
