"""Writes the table of docs/which-mac.md: `python -m benchmarks.fit`, with the extra `libraries` installed.

Each cell is the memory of a training step, computed by `mps_trainer.fit` from the shapes of the model's tensors: no
weights are loaded, and nothing is trained. The language models have the sizes of Qwen3, and TRL's `SFTTrainer` trains
them as in docs/language-models.md. With `--longest`, it prints the longest text that fits each Mac, one in a step.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from importlib.metadata import version
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

from .worker import ROOT

PAGE = ROOT / "docs" / "which-mac.md"
BEGIN, END = "<!-- which mac -->\n", "<!-- end of which mac -->\n"
TOKENIZER = ROOT / "examples" / "text-classification" / "embedded"
WORDS, POSITIONS, LENGTH, RANK, ACCUMULATED = 151936, 40960, 1024, 16, 8
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
    "14 billion": dict(zip(_NAMES, (5120, 17408, 40, 40), strict=True)),
}
UNTIED = ("8 billion", "14 billion")  # these have a head of their own
FULL, LORA, MLX, NF4 = "all weights", "LoRA", "LoRA on MLX's 4 bits", "LoRA on nf4"
COLUMNS = (FULL, LORA, MLX)

SETTINGS: dict[str, Any] = {"use_cpu": True, "report_to": "none", "max_steps": 1}
_FOUR_BITS = mlx_loading.Settings(Path(), {"bits": 4, "group_size": 64})


class _AllQuantized(FakeTensors):
    """Stands for a folder in which all linear layers and embeddings are quantized."""

    def __init__(self) -> None:
        pass

    def __contains__(self, name: str) -> bool:
        return name.endswith("_proj.scales") or name in ("lm_head.scales", "model.embed_tokens.scales")


def language_model(size: str, way: str) -> Any:
    """Returns a model without memory for its weights, in the format of `way`."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    from mps_trainer.tools.fit.quantized import BYTES, quantize

    config = Qwen3Config(**COMMON, **SIZES[size], tie_word_embeddings=size not in UNTIED)
    dtype = torch.float32 if way == FULL else torch.bfloat16
    model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
    if way == MLX:
        mlx_loading.fill(model, _AllQuantized(), _FOUR_BITS, dtype, torch.device("cpu"))
    elif way == NF4:
        quantize(model.requires_grad_(False), BYTES[4], torch.bfloat16)
    return model


def chats(size: str) -> Callable[[str, str], Any]:
    """Returns a function that gives TRL's Trainer for a way to train a model on chats of 1,024 tokens."""

    def trainer(way: str, folder: str) -> Any:
        from datasets import Dataset
        from peft import LoraConfig
        from transformers import AutoTokenizer
        from trl import SFTConfig, SFTTrainer

        args = SFTConfig(
            folder,
            per_device_train_batch_size=1,
            gradient_accumulation_steps=ACCUMULATED,
            max_length=LENGTH,
            bf16=True,
            **SETTINGS,
        )
        lora = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear")
        return SFTTrainer(
            language_model(size, way),
            args,
            train_dataset=Dataset.from_dict({"input_ids": [[7] * LENGTH] * ACCUMULATED}),
            processing_class=AutoTokenizer.from_pretrained(TOKENIZER),
            peft_config=lora if way in (LORA, MLX) else None,
        )

    return trainer


def sentences(way: str, folder: str) -> Trainer:
    """Returns a Trainer for BERT-base as a classifier of texts of 128 tokens."""
    from transformers import AutoModelForSequenceClassification, BertConfig

    model = AutoModelForSequenceClassification.from_config(BertConfig(num_labels=2))
    rows = [{"input_ids": torch.ones(128, dtype=torch.long), "labels": 0}] * 32
    return Trainer(adapted(model, way), arguments(folder), train_dataset=rows)


def images(way: str, folder: str) -> Trainer:
    """Returns a Trainer for ViT-base as a classifier of images of 224 x 224 pixels."""
    from transformers import AutoModelForImageClassification, ViTConfig

    model = AutoModelForImageClassification.from_config(ViTConfig(num_labels=10))
    rows = [{"pixel_values": torch.zeros(3, 224, 224), "labels": 0}] * 32
    return Trainer(adapted(model, way), arguments(folder), train_dataset=rows)


def adapted(model: Any, way: str) -> Any:
    """Returns an encoder with adapters if they are trained."""
    from peft import LoraConfig, get_peft_model

    from mps_trainer.tools.fit.fake_tensors import make_fake

    if way != LORA:
        return model
    model = get_peft_model(model, LoraConfig(r=RANK, target_modules="all-linear"), low_cpu_mem_usage=True)
    make_fake(model)
    return model


def arguments(folder: str) -> TrainingArguments:
    return TrainingArguments(folder, per_device_train_batch_size=32, **SETTINGS)


# By the first cell of a row.
ROWS: dict[str, Callable[[str, str], Any]] = {
    "BERT-base, 110 million parameters: 32 texts of 128 tokens": sentences,
    "ViT-base, 86 million: 32 images of 224 x 224 pixels": images,
    **{f"language model, {size}: a chat of {LENGTH:,} tokens": chats(size) for size in SIZES},
}
WAYS: Mapping[str, tuple[str, ...]] = {row: COLUMNS if "chat" in row else (FULL, LORA) for row in ROWS}


@contextlib.contextmanager
def step_of(make: Callable[[str, str], Any], way: str) -> Iterator[tuple[Any, Batch]]:
    """Gives a Trainer and its batch, inside what computes steps as on mps."""
    with tempfile.TemporaryDirectory() as folder, models_are_fake(), as_on_mps():
        trainer = make(way, folder)
        yield trainer, largest_batch(trainer, 1)


def cell(row: str, way: str) -> str:
    """Returns the peak memory of a step and the smallest Mac that it fits on, or a dash."""
    if way not in WAYS[row]:
        return "–"
    with step_of(ROWS[row], way) as (trainer, batch):
        peak = measure_step(trainer, batch).bytes_peak
    size = smallest_for(peak)
    return f"{peak / GIB:.1f} GiB, " + (f"more than {MACS[-1]} GB" if size is None else f"{size} GB")


def table() -> str:
    """Returns the table in Markdown, with a line that says when and with what it was computed."""
    lines = ["| | " + " | ".join(COLUMNS) + " |", "| --- |" + " ---: |" * len(COLUMNS)]
    for row in ROWS:
        start = time.perf_counter()
        cells = []
        for way in COLUMNS:
            cells.append(cell(row, way))
            print(row, way, cells[-1], f"{time.perf_counter() - start:.0f} s", flush=True)
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    used = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "trl", "peft"))
    return "\n".join([*lines, "", f"Computed on {date.today()} with {used}."]) + "\n"


def print_longest() -> None:
    """Prints the longest text that fits each Mac, for each model with LoRA."""
    print("| parameters | weights | " + " | ".join(f"{mac} GB" for mac in MACS) + " |")
    print("| --- | --- |" + " ---: |" * len(MACS))
    for size in SIZES:
        for way, name in ((LORA, "bfloat16"), (NF4, "4 bits")):
            with step_of(texts(size), way) as (trainer, batch):
                found = longest_texts(trainer, batch, map(limit_of, MACS), lambda _: None)
            cells = [f"{tokens:,}" if tokens else "none" for tokens in found.values()]
            print(f"| {size} | {name} | " + " | ".join(cells) + " |", flush=True)


def texts(size: str) -> Callable[[str, str], Trainer]:
    """Returns a function that gives this package's own Trainer for LoRA on one text in a step."""

    def trainer(way: str, folder: str) -> Trainer:
        row = torch.zeros(LENGTH, dtype=torch.long)
        args = TrainingArguments(
            folder, per_device_train_batch_size=1, bf16=True, gradient_checkpointing=True, **SETTINGS
        )
        model = adapted(language_model(size, way), LORA)
        return Trainer(model, args, train_dataset=[{"input_ids": row, "labels": row}])

    return trainer


def main() -> None:
    warnings.simplefilter("ignore")
    if "--longest" in sys.argv:
        print_longest()
        return
    import mps_trainer.replace_transformers  # noqa: F401  # before TRL

    made = table()  # takes 40 minutes on two busy cores
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + made + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
