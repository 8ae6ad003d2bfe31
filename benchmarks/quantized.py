"""A step of LoRA on a Llama's frozen weights: in 32 bits, in MLX's 4-bit format, and in nf4 of bitsandbytes."""

from __future__ import annotations

import importlib.util
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

from .benchmark import Benchmark, Entry, Figure, Options, Plan
from .language import MIB
from .overhead import milliseconds_per_step
from .worker import measure_in_process

LABELS = {"plain": "weights in 32 bits", "mlx": "MLX's format, 4 bits", "nf4": "nf4 of bitsandbytes"}
LENGTH = 256  # tokens of a text


def plan(options: Options) -> Plan:
    settings = {"steps": 6, "warm_up": 2, "layers": 8, "width": 1024, "counted_steps": 8}
    if options.quick:
        settings = {"steps": 3, "warm_up": 1, "layers": 2, "width": 128, "counted_steps": 8}
    absent = {} if importlib.util.find_spec("bitsandbytes") else {"nf4": "bitsandbytes is not installed"}
    entries = {
        name: Entry(label, partial(_run, name, settings)) for name, label in LABELS.items() if name not in absent
    }
    return Plan(entries, settings, absent)


def _run(peer: str, settings: dict[str, Any], round_: int) -> dict[str, Any]:
    of_step = {name: value for name, value in settings.items() if name != "counted_steps"}
    counted = {**of_step, "steps": settings["counted_steps"], "layers": 2, "width": settings["width"] // 2}
    measured = measure_in_process("quantized", peer=peer, **of_step)
    return measured | measure_in_process("quantized", peer=peer, **counted, counts=True)


def measure(
    peer: str, steps: int, warm_up: int, layers: int, width: int, folder: str, counts: bool = False
) -> dict[str, Any]:
    """Returns the time of a step on the CPU; with `counts`, operators, waits and memory on the simulated device."""
    if not counts:
        return _measure_step(_adapted(peer, layers, width, folder), steps, warm_up, folder)
    from mps_trainer.simulator import SimulatorUnavailableError, simulated_mps

    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # bitsandbytes compiles its functions, which a simulated device cannot run
    try:
        with simulated_mps() as device:
            return _count_step(device, _adapted(peer, layers, width, folder), steps, folder)
    except SimulatorUnavailableError:
        return {}


def _adapted(peer: str, layers: int, width: int, folder: str) -> Any:
    """Returns a random Llama with LoRA of rank 8 on all its linear layers, and the weights of `peer`."""
    import torch
    import transformers
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    config: Any = transformers.LlamaConfig(
        vocab_size=4096,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model: Any = transformers.LlamaForCausalLM(config)
    path = Path(folder, "model")
    if peer == "mlx":
        from mps_trainer import load_mlx_model
        from tests.mlx_format import save_quantized

        save_quantized(model, path, bits=4, group_size=64)
        model = load_mlx_model(str(path), dtype=torch.float32)
    elif peer == "nf4":
        model.save_pretrained(path)
        quantization = transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
        )
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path, quantization_config=quantization, dtype=torch.float32
        )
    return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=8, target_modules="all-linear"))


def _arguments(folder: str, steps: int, **more: Any) -> Any:
    import mps_trainer

    quiet: dict[str, Any] = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "logging_steps": steps}
    return mps_trainer.TrainingArguments(folder, per_device_train_batch_size=1, max_steps=steps, **quiet, **more)


def _texts(steps: int) -> list[dict[str, Any]]:
    import torch

    return [{"input_ids": row, "labels": row} for row in torch.randint(0, 4096, (steps, LENGTH))]


def _measure_step(model: Any, steps: int, warm_up: int, folder: str) -> dict[str, Any]:
    from transformers import TrainerCallback

    import mps_trainer

    begun: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *given: Any, **more: Any) -> None:
            begun.append(time.process_time())

    arguments = _arguments(folder, steps, use_cpu=True, gradient_checkpointing=True)
    result = mps_trainer.Trainer(model, arguments, train_dataset=_texts(steps), callbacks=[Clock()]).train()
    return {
        "milliseconds": milliseconds_per_step(begun, warm_up),
        "weights_mib": sum(each.numel() * each.element_size() for each in model.parameters()) / MIB,
        "learned": {"steps": result.global_step},  # losses differ: each peer rounds the weights in its own way
    }


def _count_step(device: Any, model: Any, steps: int, folder: str) -> dict[str, Any]:
    import torch

    import mps_trainer

    from .simulated import _counted

    def train(model: Any, rows: Any) -> None:
        trainer = mps_trainer.Trainer(
            model, _arguments(folder, steps, gradient_checkpointing=True), train_dataset=rows
        )
        torch.accelerator.reset_peak_memory_stats()
        trainer.train()

    _, counts = _counted(device, train, model, _texts(steps))
    peak = torch.accelerator.max_memory_allocated() / MIB
    return {"operators": counts["operators"], "blocking_reads": counts["blocking_reads"], "peak_mib": peak}


BENCHMARK = Benchmark(
    title="A step of LoRA on weights in 32 bits and in 4 bits",
    figures=(
        Figure("milliseconds", "processor ms a step", digits=0, ratio=True, chart=True),
        Figure("weights_mib", "MiB of weights", digits=0, ratio=True, chart=True),
        Figure("operators", "operators, two layers of half the width, simulated mps", digits=0, ratio=True),
        Figure("blocking_reads", "blocking syncs", digits=0),
        Figure("peak_mib", "MiB in a step, same model", digits=0, ratio=True),
    ),
    plan=plan,
    rounds=3,
    baseline="plain",
    targets=(),
    by_default=False,
)
