"""Measures the memory growth of the process and of the simulated device during training."""

from __future__ import annotations

from functools import partial
from typing import Any

from .benchmark import Benchmark, Entry, Figure, Options, Plan
from .peers import PEERS, left_out
from .simulated import why_unavailable
from .worker import measure_in_process

MEASURED = ("ours", "bare")  # whoever is asked for of these; the loop by hand shows what torch itself takes
MIB = 2**20


def plan(options: Options) -> Plan:
    settings = {"steps": 60, "settled": 20, "every": 10}
    if not options.quick:
        settings = {"steps": 5000, "settled": 500, "every": 50}
    peers = [name for name in MEASURED if name in options.peers]
    absent = left_out(peers)
    entries = {
        f"{name}-{device}": Entry(f"{PEERS[name].label}, {where}", partial(_run, name, device, settings))
        for name in peers
        for device, where in (("cpu", "process on the CPU"), ("mps", "simulated mps device"))
        if name not in absent
    }
    if (reason := why_unavailable()) is not None:
        for name in [name for name in entries if name.endswith("-mps")]:
            del entries[name]
            absent[name] = reason
    return Plan(entries, settings, absent)


def _run(peer: str, device: str, settings: dict[str, Any], round_: int) -> dict[str, Any]:
    return measure_in_process("memory", peer=peer, device=device, **settings)


def measure(peer: str, device: str, steps: int, settled: int, every: int, folder: str) -> dict[str, Any]:
    """The growth from step `settled` to the end; `series` has [step, MiB], every so many steps."""
    if device == "cpu":
        import psutil

        return _train(peer, device, steps, settled, every, folder, lambda: psutil.Process().memory_info().rss)
    from mps_trainer.simulator import simulated_mps

    with simulated_mps() as simulated:
        return _train(peer, device, steps, settled, every, folder, lambda: simulated.counters()["bytes_live"])


def _train(peer: str, device: str, steps: int, settled: int, every: int, folder: str, in_use: Any) -> dict[str, Any]:
    import torch

    from .tasks import loss_after, small_bert

    model, task = small_bert(steps, folder=folder, device=device)
    series: list[list[float]] = []
    done = [0]

    def note(module: Any, *_: Any) -> None:
        if not module.training:  # mps_trainer compares a first batch with and without padding
            return
        torch.manual_seed(done[0])  # the same dropout for all
        if done[0] % every == 0 or done[0] == steps - 1:
            series.append([done[0], in_use() / MIB])
        done[0] += 1

    watch = model.register_forward_pre_hook(note)
    PEERS[peer].train()(model, task)
    watch.remove()
    start = next(size for step, size in series if step >= settled)
    end = series[-1][1]
    learned = {"steps": done[0], "loss": loss_after(model, task)}
    growth = 100 * (end - start) / start
    return {"mib_settled": start, "mib_end": end, "growth_percent": growth, "series": series, "learned": learned}


BENCHMARK = Benchmark(
    title="Memory over a long run of batches of varying length",
    figures=(
        Figure("mib_settled", "MiB when settled", digits=1),
        Figure("mib_end", "MiB at the end", digits=1),
        Figure("growth_percent", "growth, %", digits=2),
    ),
    plan=plan,
    rounds=1,
)
