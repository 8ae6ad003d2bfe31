"""Measures each option for speed alone in one epoch of MRPC with `run_glue.py`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from . import glue, mrpc
from .benchmark import Benchmark, Entry, Figure, Options, Plan

SETTINGS = ["--num_train_epochs", "1", "--learning_rate", "2e-4", "--save_strategy", "no"]
OPTIONS: dict[str, list[str]] = {
    "plain": [],
    "bf16": ["--bf16"],
    "torch_compile": ["--torch_compile"],
    "gradient_checkpointing": ["--gradient_checkpointing"],
    "pad_to_max_length": ["--pad_to_max_length", "True"],
}


def plan(options: Options) -> Plan:
    arguments = [*glue.real(options), *SETTINGS]
    arguments += mrpc.QUICK if options.quick else ["--per_device_train_batch_size", "32"]
    scripts, absent = glue.scripts(options)
    if "ours" not in scripts:
        return Plan({}, {"arguments": glue.shown(arguments, options)}, absent)
    entries = {
        name: Entry(f"run_glue.py {' '.join(more) or 'as it is'}", partial(_run, arguments + more, scripts["ours"]))
        for name, more in OPTIONS.items()
    }
    return Plan(entries, {"arguments": glue.shown(arguments, options)}, absent)


def _run(arguments: list[str], script: Path, round_: int) -> dict[str, Any]:
    measured = glue.run(script, [*arguments, "--seed", str(round_ + 1)])
    return {**measured, "dev_accuracy": measured["learned"]["dev accuracy"]}


BENCHMARK = Benchmark(
    title="Options for speed: one epoch of MRPC with MiniLM",
    figures=(
        Figure("training_seconds", "seconds of training", digits=1, ratio=True, chart=True),
        Figure("seconds", "seconds", digits=1),
        Figure("peak_rss_mib", "peak RSS, MiB", digits=0),
        Figure("dev_accuracy", "mean dev accuracy", digits=4, mean=True),
    ),
    plan=plan,
    rounds=2,
    baseline="plain",
    by_default=False,
)
