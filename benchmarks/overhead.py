"""Measures the overhead of a training loop: the time of a step of a tiny model."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from .benchmark import Benchmark, Entry, Figure, Options, Plan, Target
from .peers import PEERS, left_out
from .worker import measure_in_process


def plan(options: Options) -> Plan:
    settings = {"steps": 60, "warm_up": 20} if options.quick else {"steps": 2200, "warm_up": 200}
    absent = left_out(list(options.peers))
    entries = {
        name: Entry(PEERS[name].label, partial(_run, name, settings)) for name in options.peers if name not in absent
    }
    return Plan(entries, settings, absent)


def _run(peer: str, settings: dict[str, Any], round_: int) -> dict[str, Any]:
    return measure_in_process("overhead", peer=peer, **settings)


def measure(peer: str, steps: int, warm_up: int, folder: str) -> dict[str, Any]:
    """From the forward pass of step `warm_up` to that of the last: neither beginning nor end of a run is in it."""
    from .tasks import loss_after, one_layer

    model, task = one_layer(steps, folder=folder)
    train = PEERS[peer].train()
    begun: list[float] = []
    watch = model.register_forward_pre_hook(lambda *_: begun.append(time.perf_counter()))
    train(model, task)
    watch.remove()
    learned = {"steps": len(begun), "loss": loss_after(model, task)}
    return {"milliseconds_per_step": milliseconds_per_step(begun, warm_up), "learned": learned}


def milliseconds_per_step(begun: list[float], warm_up: int) -> float:
    """The mean over the steps after the first `warm_up`, from the times in seconds at which forward passes began."""
    return 1000 * (begun[-1] - begun[warm_up]) / (len(begun) - 1 - warm_up)


BENCHMARK = Benchmark(
    title="Overhead of the loop: a step of one linear layer",
    figures=(Figure("milliseconds_per_step", "ms a step", digits=3, ratio=True, chart=True),),
    plan=plan,
    rounds=7,
    baseline="bare",
    targets=(Target("ours", "milliseconds_per_step", 0.75, of_ratio=True),),
)
