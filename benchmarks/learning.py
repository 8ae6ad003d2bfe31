"""Compares what both Trainers learn: MRPC with a pretrained MiniLM, three epochs in bfloat16, a seed a round."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from . import glue
from .benchmark import Benchmark, Entry, Figure, Options, Plan
from .mrpc import QUICK
from .peers import PEERS

EPOCHS = 3
SETTINGS = ["--learning_rate", "2e-4", "--bf16", "--save_strategy", "no"]
MORE = {"transformers": ["--dynamic"]}  # learns what it learns with batches of 128 tokens, in less time


def plan(options: Options) -> Plan:
    arguments = [*glue.real(options), *SETTINGS, "--num_train_epochs", str(EPOCHS)]
    arguments += QUICK if options.quick else ["--per_device_train_batch_size", "32"]
    scripts, absent = glue.scripts(options)
    entries = {
        name: Entry(PEERS[name].label, partial(_run, path, arguments + MORE.get(name, [])))
        for name, path in scripts.items()
    }
    return Plan(entries, {"arguments": glue.shown(arguments, options), "seed": "the round's number, from 1"}, absent)


def _run(script: Path, arguments: list[str], round_: int) -> dict[str, Any]:
    measured = glue.run(script, [*arguments, "--seed", str(round_ + 1)])
    return {**measured, "dev_accuracy": measured["learned"]["dev accuracy"]}


BENCHMARK = Benchmark(
    title=f"Learning: MRPC with MiniLM, {EPOCHS} epochs",
    figures=(Figure("dev_accuracy", "mean dev accuracy", digits=4, chart=True, mean=True),),
    plan=plan,
    rounds=5,  # seeds differ by points: three would not tell half a point
    baseline="transformers",
    by_default=False,
)
