"""Counts the blocking syncs, copies and operators of a step on the simulated mps device."""

from __future__ import annotations

import itertools
import statistics
from functools import partial
from typing import Any

from .benchmark import Benchmark, Entry, Figure, Options, Plan, SkippedError, Target
from .peers import PEERS, left_out
from .worker import measure_in_process

COUNTS = ("blocking_reads", "host_to_device", "operators")
WARM_UP = 3  # steps that make the optimizer's state


def plan(options: Options) -> Plan:
    if (reason := why_unavailable()) is not None:
        raise SkippedError(reason)
    settings = {"steps": 12 if options.quick else 120}
    absent = left_out(list(options.peers))
    entries = {
        name: Entry(PEERS[name].label, partial(_run, name, settings)) for name in options.peers if name not in absent
    }
    return Plan(entries, settings, absent)


def why_unavailable() -> str | None:
    """None where the simulated device works, otherwise why it does not."""
    return measure_in_process("simulated", peer=None, steps=0)["unavailable"]


def _run(peer: str, settings: dict[str, Any], round_: int) -> dict[str, Any]:
    return measure_in_process("simulated", peer=peer, **settings)


def measure(peer: str | None, steps: int, folder: str) -> dict[str, Any]:
    """The counts of a step; without a peer, whether there is a simulated device."""
    from mps_trainer.simulator import SimulatorUnavailableError, simulated_mps

    try:
        with simulated_mps() as device:
            return {"unavailable": None} if peer is None else _measure_on(device, peer, steps, folder)
    except SimulatorUnavailableError as error:
        if peer is not None:
            raise
        return {"unavailable": str(error)}


def _measure_on(device: Any, peer: str, steps: int, folder: str) -> dict[str, Any]:
    """The medians of a step's counts, in all and without the model's own, which are counted first."""
    from .tasks import loss_after, small_bert

    settings = {"folder": folder, "device": "mps"}
    _, of_model = _counted(device, _passes, *small_bert(steps, **settings))
    model, task = small_bert(steps, **settings)
    done, of_step = _counted(device, PEERS[peer].train(), model, task)
    of_loop = {f"loop_{name}": of_step[name] - of_model[name] for name in COUNTS}
    return {**of_step, **of_loop, "learned": {"steps": done, "loss": loss_after(model, task)}}


def _counted(device: Any, train: Any, model: Any, task: Any) -> tuple[int, dict[str, float]]:
    """Steps done, and the medians of their counts, from one forward pass to the next."""
    import torch

    counted: list[dict[str, int]] = []

    def note(module: Any, *_: Any) -> None:
        if not module.training:  # mps_trainer compares a first batch with and without padding
            return
        torch.manual_seed(len(counted))  # the same dropout for all, whatever a library draws between two steps
        counted.append(_totals(device))

    watch = model.register_forward_pre_hook(note)
    train(model, task)
    watch.remove()
    steps = list(itertools.pairwise(counted[WARM_UP:]))
    return len(counted), {name: statistics.median(new[name] - old[name] for old, new in steps) for name in COUNTS}


def _passes(model: Any, task: Any) -> None:
    """Forward and backward and nothing else, on batches that are on the device already."""
    model.to("mps").train()
    starts = range(0, len(task.examples), task.batch_size)
    batches = [task.collate(task.examples[start : start + task.batch_size]) for start in starts]
    batches = [{name: values.to("mps") for name, values in batch.items()} for batch in batches]
    for batch in batches:
        model(**batch)["loss"].backward()
        model.zero_grad()


def _totals(device: Any) -> dict[str, int]:
    counters = device.counters()
    operators = sum(calls for calls, _, _ in counters["operators"].values())
    return {**{name: counters[name] for name in COUNTS if name != "operators"}, "operators": operators}


BENCHMARK = Benchmark(
    title="A step on the simulated mps device: BERT of two layers, padded batches",
    figures=(
        Figure("blocking_reads", "blocking syncs", digits=1, chart=True),
        Figure("loop_blocking_reads", "syncs of the loop", digits=1),
        Figure("host_to_device", "host-to-device copies", digits=1, chart=True),
        Figure("operators", "operators", digits=0, ratio=True, chart=True),
        Figure("loop_operators", "operators of the loop", digits=0),
    ),
    plan=plan,
    rounds=1,  # counts are the same each time
    baseline="bare",
    targets=(
        Target("ours", "blocking_reads", 0),
        Target("ours", "host_to_device", 1),
        Target("ours", "operators", 184),
    ),
)
