"""Measures the time before training starts: imports, arguments, help, and the first step."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from . import glue
from .benchmark import Benchmark, Entry, Figure, Options, Plan, Target
from .worker import ROOT, run_process

DEVICE = "from {0} import TrainingArguments; TrainingArguments(output_dir='out').device"
PACKAGES = {"ours": "mps_trainer", "transformers": "transformers"}
EMBEDDED = glue.EXAMPLE / "embedded"
# What --embedded sets in run_glue.py, for the script that has no such flag.
AS_EMBEDDED = [
    *("--data_dir", str(EMBEDDED / "data" / "MRPC"), "--model_name_or_path", str(EMBEDDED), "--from_scratch"),
    *("--dynamic", "--max_seq_length", "64", "--learning_rate", "1e-3", "--per_device_train_batch_size", "32"),
    *("--per_device_eval_batch_size", "64", "--logging_steps", "50", "--warmup_steps", "0.1"),
]


def plan(options: Options) -> Plan:
    scripts, absent = glue.scripts(options)
    entries = {
        "python": Entry("python", partial(_seconds, ["-c", "pass"])),
        "torch": Entry("import torch", partial(_seconds, ["-c", "import torch"])),
    }
    for name, path in scripts.items():
        package, code = PACKAGES[name], DEVICE.format(PACKAGES[name])
        arguments = ["--embedded"] if name == "ours" else AS_EMBEDDED
        entries |= {
            f"{name}-device": Entry(f"{package}: TrainingArguments(...).device", partial(_seconds, ["-c", code])),
            f"{name}-help": Entry(f"{package}: {path.name} --help", partial(_seconds, [str(path), "--help"])),
            f"{name}-first-step": Entry(f"{package}: {path.name}, first step", partial(_first_step, path, arguments)),
        }
    if len(scripts) == 2:
        label = f"mps_trainer: {glue.THEIRS.name} with the import changed, first step"
        entries["import-first-step"] = Entry(label, partial(_first_step, glue.import_changed, AS_EMBEDDED))
    kinds = ("python", "torch", "-device", "-help", "-first-step")  # compared entries stand together
    ordered = {name: entries[name] for kind in kinds for name in entries if name.endswith(kind)}
    arguments = [argument.replace(f"{ROOT}/", "") for argument in AS_EMBEDDED]
    return Plan(ordered, {"arguments": arguments}, absent)


def _seconds(arguments: list[str], round_: int) -> dict[str, Any]:
    before = os.times()
    seconds = run_process(arguments)
    after = os.times()
    processor = after.children_user - before.children_user + after.children_system - before.children_system
    return {"seconds": seconds, "processor_seconds": processor}


def _first_step(script: Any, arguments: list[str], round_: int) -> dict[str, Any]:
    measured = glue.run(script, [*arguments, "--max_steps", "2", "--save_strategy", "no"])
    return {
        "seconds": measured["first_step_seconds"],
        "processor_seconds": measured["first_step_processor_seconds"],
        "learned": {"training loss": measured["learned"]["training loss"]},
    }


BENCHMARK = Benchmark(
    title="Start-up, in new processes",
    figures=(
        Figure("seconds", "seconds", digits=2, ratio=True, chart=True),
        Figure("processor_seconds", "processor seconds", digits=2, ratio=True),
    ),
    plan=plan,
    rounds=5,
    baseline="torch",
    targets=(Target("ours-first-step", "processor_seconds", 2.2, of_ratio=True),),
)
