"""Computes which Macs the training steps of four language models fit on: `python -m benchmarks.fit`.

The models have the sizes of Qwen3 with 0.6, 1.7, 4 and 8 billion parameters, and no memory for their weights. A step
has two rows of 1,024 tokens and checkpoints its activations, as examples/language-modeling/train.py does. With
`--longest`, the longest text that fits each Mac, one in a step. With `--mlx`, a step of one text on weights of MLX.
"""

from __future__ import annotations

import contextlib
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from mps_trainer import Trainer, TrainingArguments
from mps_trainer.model import mlx_loading
from mps_trainer.tools.fit.fake_models import FakeTensors, models_are_fake
from mps_trainer.tools.fit.fit_report import GIB, limit_of, smallest_for
from mps_trainer.tools.fit.fit_report import SIZES as MACS
from mps_trainer.tools.fit.longest import longest_texts
from mps_trainer.tools.fit.step import Batch, as_on_mps, largest_batch, measure_step

WORDS, POSITIONS, LENGTH, ROWS, RANK = 151936, 40960, 1024, 2, 16
COMMON: dict[str, Any] = {
    "vocab_size": WORDS,
    "max_position_embeddings": POSITIONS,
    "head_dim": 128,
    "num_key_value_heads": 8,
}
_NAMES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
SIZES: dict[str, dict[str, Any]] = {
    "0.6 billion": dict(zip(_NAMES, (1024, 3072, 28, 16), strict=True)),
    "1.7 billion": dict(zip(_NAMES, (2048, 6144, 28, 16), strict=True)),
    "4 billion": dict(zip(_NAMES, (2560, 9728, 36, 32), strict=True)),
    "8 billion": dict(zip(_NAMES, (4096, 12288, 36, 32), strict=True)),
}
LARGE = {"14 billion": dict(zip(_NAMES, (5120, 17408, 40, 40), strict=True))}
UNTIED = ("8 billion", "14 billion")  # these have a head of their own
MLX, NF4 = "LoRA, weights of MLX in 4 bits", "LoRA, weights in 4 bits"
WAYS = ("full, weights in float32", "LoRA, weights in bfloat16", "LoRA, weights in 4 bits")


_FOUR_BITS = mlx_loading.Settings(Path(), {"bits": 4, "group_size": 64})


class _AllQuantized(FakeTensors):
    """Stands for a folder in which all linear layers and embeddings are quantized."""

    def __init__(self) -> None:
        pass

    def __contains__(self, name: str) -> bool:
        return name.endswith("_proj.scales") or name in ("lm_head.scales", "model.embed_tokens.scales")


def model_of(size: str, way: str) -> Any:
    """Returns a model without memory for weights, with adapters if they are trained."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, Qwen3Config

    from mps_trainer.tools.fit.fake_tensors import make_fake
    from mps_trainer.tools.fit.quantized import BYTES, quantize

    sizes = {**SIZES, **LARGE}[size]
    config = Qwen3Config(**COMMON, **sizes, tie_word_embeddings=size not in UNTIED)
    dtype = torch.float32 if "full" in way else torch.bfloat16
    model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
    if way == MLX:
        mlx_loading.fill(model, _AllQuantized(), _FOUR_BITS, dtype, torch.device("cpu"))
    elif "4 bits" in way:
        quantize(model.requires_grad_(False), BYTES[4], torch.bfloat16)
    if "LoRA" in way:
        adapter = LoraConfig(r=RANK, target_modules="all-linear")
        model = get_peft_model(model, adapter, low_cpu_mem_usage=True)
        make_fake(model)
    return model


@contextlib.contextmanager
def step_of(size: str, way: str, count: int, length: int = LENGTH) -> Iterator[tuple[Trainer, Batch]]:
    """Gives a Trainer and its batch of `count` rows, inside what computes steps as on mps."""
    rows = [{"input_ids": row, "labels": row} for row in torch.zeros(count, length, dtype=torch.long)]
    with tempfile.TemporaryDirectory() as folder, models_are_fake(), as_on_mps():
        settings: dict[str, Any] = {
            "per_device_train_batch_size": count,
            "gradient_checkpointing": True,
            "bf16": True,
            "max_steps": 1,
        }
        args = TrainingArguments(folder, use_cpu=True, report_to="none", **settings)
        trainer = Trainer(model_of(size, way), args, train_dataset=rows)
        yield trainer, largest_batch(trainer, 1)


def peak_of(size: str, way: str) -> int:
    """Returns the peak memory of the step in bytes."""
    with step_of(size, way, ROWS) as (trainer, batch):
        return measure_step(trainer, batch).bytes_peak


def print_longest() -> None:
    """Prints the longest text that fits each Mac, for each model with LoRA."""
    print("| parameters | weights | " + " | ".join(f"{mac} GB" for mac in MACS) + " |")
    print("| --- | --- |" + " ---: |" * len(MACS))
    for size in SIZES:
        for way in WAYS[1:]:
            with step_of(size, way, 1) as (trainer, batch):
                texts = longest_texts(trainer, batch, map(limit_of, MACS), lambda _: None)
            cells = [f"{tokens:,}" if tokens else "none" for tokens in texts.values()]
            print(f"| {size} | {way.partition('in ')[2]} | " + " | ".join(cells) + " |", flush=True)


def print_mlx() -> None:
    """Prints the memory of a step of one text on MLX's 4-bit weights, and beside it on those of bitsandbytes."""
    lengths = (1024, 4096)
    print("| parameters | " + " | ".join(f"{length:,} tokens" for length in lengths) + " | nf4, 1,024 tokens |")
    print("| --- |" + " ---: |" * (len(lengths) + 1))
    for size in (*SIZES, *LARGE):
        cells = []
        for way, length in (*((MLX, length) for length in lengths), (NF4, lengths[0])):
            with step_of(size, way, 1, length) as (trainer, batch):
                peak = measure_step(trainer, batch).bytes_peak
            cells.append(f"{peak / GIB:.1f} GiB, {_on(peak)}")
        print(f"| {size} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    warnings.simplefilter("ignore")
    if "--mlx" in sys.argv:
        print_mlx()
        return
    if "--longest" in sys.argv:
        print_longest()
        return
    print("| parameters | " + " | ".join(WAYS) + " | seconds |")
    print("| --- |" + " ---: |" * (len(WAYS) + 1))
    for size in SIZES:
        start = time.perf_counter()
        peaks = [peak_of(size, way) for way in WAYS]
        cells = [f"{peak / GIB:.1f} GiB, {_on(peak)}" for peak in peaks]
        print(f"| {size} | " + " | ".join(cells) + f" | {time.perf_counter() - start:.0f} |", flush=True)
    print(f"\nThe process had {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB of memory at most.")


def _on(peak: int) -> str:
    size = smallest_for(peak)
    return f"more than {MACS[-1]} GB" if size is None else f"{size} GB"


if __name__ == "__main__":
    main()
