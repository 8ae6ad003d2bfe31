"""MRPC with a pretrained MiniLM: one epoch by the whole script, from its start to its end."""

from __future__ import annotations

from functools import partial
from typing import Any

from mps_trainer.devices.facts import cpu_bfloat16

from . import glue
from .benchmark import Benchmark, Entry, Figure, Options, Plan, Target
from .worker import measure_in_process

BUCKETS = ["--train_sampling_strategy", "bucket_by_length"]
LESS_WORK = ["--skip_unread_tokens"]
VARIANTS: dict[str, dict[str, tuple[str, list[str]]]] = {
    "ours": {
        "ours": ("run_glue.py, its defaults", []),
        "ours-bf16": ("run_glue.py, bf16", ["--bf16"]),
    },
    "transformers": {
        "transformers": ("transformers Trainer, padded to 128", []),
        "transformers-dynamic": ("transformers Trainer, padded by batch", ["--dynamic"]),
        "transformers-dynamic-bf16": ("transformers Trainer, padded by batch, bf16", ["--dynamic", "--bf16"]),
    },
    "import": {
        "import": ("the same script, import changed", ["--dynamic"]),
        "import-buckets": ("import changed, bucket_by_length", ["--dynamic", *BUCKETS]),
        "import-unread": (
            "import changed, bucket_by_length and skip_unread_tokens",
            ["--dynamic", *BUCKETS, *LESS_WORK],
        ),
    },
}
SLOW_BFLOAT16 = "this processor has no instructions for bfloat16"
QUICK = ["--max_train_samples", "32", "--max_eval_samples", "16", "--per_device_train_batch_size", "8"]


def plan(options: Options) -> Plan:
    arguments = [*glue.real(options), "--num_train_epochs", "1"]
    arguments += QUICK if options.quick else ["--per_device_train_batch_size", "32"]
    runnable, absent = glue.scripts(options)
    scripts: dict[str, glue.Script] = {**runnable}
    if "ours" in scripts:
        scripts["import"] = glue.import_changed
    gemm = measure_in_process("mrpc", seconds=0.2 if options.quick else 10)["flops_per_second"]
    entries = {
        name: Entry(label, partial(_run, scripts[peer], [*arguments, *more], gemm))
        for peer in scripts
        for name, (label, more) in VARIANTS[peer].items()
    }
    settings = {"arguments": glue.shown(arguments, options), "gemm_gflops_per_second": gemm / 1e9}
    if cpu_bfloat16() is False:  # a run would take up to eleven times as long
        in_bfloat16 = {name: SLOW_BFLOAT16 for name in entries if name.endswith("-bf16")}
        entries = {name: entry for name, entry in entries.items() if name not in in_bfloat16}
        absent = {**absent, **in_bfloat16}
    return Plan(entries, settings, absent)


def _run(script: glue.Script, arguments: list[str], gemm: float, round_: int) -> dict[str, Any]:
    measured = glue.run(script, arguments)
    # Forward 2 and backward 4 operations for each weight and token; the pairs of tokens that attention adds are left
    # out. The time goes from the first forward pass to the last, which is that of all steps but one.
    share = (measured["steps"] - 1) / measured["steps"]
    for name in ("real", "padded"):
        work = 6 * measured["parameters"] * measured[f"{name}_tokens"] * share
        measured[f"{name}_share_of_peak"] = work / measured["training_seconds"] / gemm
    return {**measured, "padding": measured["padded_tokens"] / measured["real_tokens"]}


def measure(seconds: float, folder: str) -> dict[str, Any]:
    """The floating-point operations a second of a product of two matrices of 1024 x 1024 float32, at its best.

    For so many `seconds`, because a machine that is busy for a moment would seem slower than it is.
    """
    import time

    import torch

    first, second = torch.randn(2, 1024, 1024)
    best, end = float("inf"), time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        torch.mm(first, second)
        best = min(best, time.perf_counter() - start)
    return {"flops_per_second": 2 * 1024**3 / best}


BENCHMARK = Benchmark(
    title="MRPC with MiniLM: one epoch, the whole process",
    figures=(
        Figure("seconds", "seconds", digits=1, ratio=True, chart=True),
        Figure("first_step_seconds", "seconds to the first step", digits=2, ratio=True, chart=True),
        Figure("training_seconds", "seconds of training", digits=1),
        Figure("training_processor_seconds", "processor seconds of training", digits=1, ratio=True, chart=True),
        Figure("evaluation_seconds", "seconds of the evaluation", digits=2, ratio=True),
        Figure("padding", "padded / real tokens", digits=2),
        Figure("distinct_shapes", "shapes of a batch", digits=0),
        Figure("peak_rss_mib", "peak RSS, MiB", digits=0, chart=True),
        Figure("real_share_of_peak", "share of GEMM peak, real tokens", digits=2),
        Figure("padded_share_of_peak", "the same, padded tokens", digits=2),
    ),
    plan=plan,
    rounds=3,
    baseline="transformers-dynamic",
    targets=(
        Target("ours", "training_processor_seconds", 0.62, of_ratio=True),
        Target("import-buckets", "training_processor_seconds", 0.78, of_ratio=True),
        Target("ours", "evaluation_seconds", 0.62, of_ratio=True),
    ),
)
