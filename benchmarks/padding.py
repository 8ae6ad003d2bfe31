"""Steps without padding: MRPC with a pretrained MiniLM, and chats with a Llama; time, memory and tokens computed."""

from __future__ import annotations

import csv
import time
from functools import partial
from pathlib import Path
from typing import Any

from .benchmark import Benchmark, Entry, Figure, Options, Plan, SkippedError, Target
from .language import MIB, highest
from .overhead import milliseconds_per_step
from .worker import measure_in_process

LABELS = {
    "ours": "mps_trainer, padding_free",
    "padded": "mps_trainer, padding_free=False",
    "sorted": "sorted by length, padded to multiples of 32, as mlx-lm",
    "transformers": "transformers Trainer",
}
TASKS = {
    "mrpc16": ("MRPC in batches of 16", 16),
    "mrpc32": ("MRPC in batches of 32", 32),
    "chats": ("chats in batches of 8", 8),
}
LONGEST = 1024  # tokens of a chat


def plan(options: Options) -> Plan:
    peers = [name for name in LABELS if name != "transformers" or name in options.peers]
    tasks, absent = list(TASKS), {}
    if not all(Path(options.data, *each).is_dir() for each in (("glue", "MRPC"), ("models", "minilm-l6"))):
        tasks, absent = ["chats"], {"mrpc16, mrpc32": "there is no glue/MRPC and models/minilm-l6 in --data"}
    if "ours" not in options.peers:
        raise SkippedError("It compares with mps_trainer.")
    settings = {"steps": 4 if options.quick else 8, "warm_up": 2, "quick": options.quick}
    entries = {
        peer: Entry(LABELS[peer], partial(_run, peer, tasks, str(Path(options.data).resolve()), settings))
        for peer in peers
    }
    return Plan(entries, settings, absent)


def _run(peer: str, tasks: list[str], data: str, settings: dict[str, Any], round_: int) -> dict[str, Any]:
    found: dict[str, Any] = {"learned": {}}
    for task in tasks:
        one = measure_in_process("padding", peer=peer, task=task, data=data, **settings)
        found["learned"] |= one.pop("learned")
        found |= one
    return found


def measure(peer: str, task: str, data: str, steps: int, warm_up: int, quick: bool, folder: str) -> dict[str, Any]:
    """Returns computed tokens for a real one and, except for "sorted", time and memory of a step of training."""
    import torch
    import transformers

    import mps_trainer

    size = TASKS[task][1]
    model, rows = _chats(steps * size, quick) if task == "chats" else _mrpc(Path(data), steps * size)
    if peer == "sorted":
        lengths = sorted(len(row["input_ids"]) for row in rows)
        batches = [lengths[start : start + size] for start in range(0, len(lengths), size)]
        padded = sum(len(batch) * 32 * -(-batch[-1] // 32) for batch in batches)
        return {f"{task}_computed": padded / sum(lengths), "learned": {}}
    real, computed, begun, left_out = 0, 0, [], []

    def collate(batch: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        nonlocal real, computed
        made = _padded(batch)
        real, computed = real + int(made["attention_mask"].sum()), computed + made["attention_mask"].numel()
        return made

    class Clock(transformers.TrainerCallback):
        def on_step_begin(self, *given: Any, **more: Any) -> None:
            begun.append(time.process_time())

        def on_train_end(self, *given: Any, **more: Any) -> None:
            left_out.append(trainer._mt_run.padding.fraction_left_out if peer == "ours" else 0)

    library: Any = transformers if peer == "transformers" else mps_trainer
    settings: dict[str, Any] = {
        "per_device_train_batch_size": size,
        "max_steps": steps,
        "learning_rate": 2e-5,
        "use_cpu": True,
    }
    settings |= {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "logging_steps": steps}
    settings |= {} if peer == "transformers" else {"padding_free": peer == "ours"}
    arguments = library.TrainingArguments(folder, **settings)
    trainer: Any = library.Trainer(model, arguments, train_dataset=rows, data_collator=collate, callbacks=[Clock()])
    start = highest()
    result = trainer.train()
    return {
        f"{task}_milliseconds": milliseconds_per_step(begun, warm_up),
        f"{task}_mib": (highest() - start) / MIB,
        f"{task}_computed": computed / real * (1 - left_out[0]),
        "learned": {f"{task} loss": result.training_loss},
    }


def _padded(batch: list[dict[str, Any]]) -> Any:
    import torch
    from torch.nn.utils.rnn import pad_sequence

    tokens = [torch.tensor(row["input_ids"]) for row in batch]
    made = {"input_ids": pad_sequence(tokens, batch_first=True)}
    made["attention_mask"] = pad_sequence([torch.ones_like(each) for each in tokens], batch_first=True)
    if isinstance(batch[0]["labels"], int):
        return {**made, "labels": torch.tensor([row["labels"] for row in batch])}
    return {**made, "labels": pad_sequence(tokens, batch_first=True, padding_value=-100)}


def _mrpc(data: Path, count: int) -> tuple[Any, list[dict[str, Any]]]:
    """Returns the pretrained MiniLM, and the first pairs of sentences."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = data / "models" / "minilm-l6"
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    with (data / "glue" / "MRPC" / "train.tsv").open(encoding="utf-8-sig", newline="") as file:
        lines = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1 : count + 1]
    tokens = AutoTokenizer.from_pretrained(folder)([line[3] for line in lines], [line[4] for line in lines])
    return model, [
        {"input_ids": row, "labels": int(line[0])} for row, line in zip(tokens["input_ids"], lines, strict=True)
    ]


def _chats(count: int, quick: bool) -> tuple[Any, list[dict[str, Any]]]:
    """Returns a Llama of six layers, and texts whose lengths spread as those of chats: a median of 200 tokens."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 6, "num_attention_heads": 8}
    if quick:
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=4096, num_key_value_heads=2, **sizes))
    lengths = torch.exp(torch.randn(count) * 0.55).mul(200).clamp(8, LONGEST).long()
    texts = [torch.randint(3, 4096, (int(length),)).tolist() for length in lengths]
    return model, [{"input_ids": text, "labels": text} for text in texts]


BENCHMARK = Benchmark(
    title="Steps with padding and without it",
    figures=tuple(
        figure
        for task, (label, _) in TASKS.items()
        for figure in (
            Figure(f"{task}_milliseconds", f"processor ms a step, {label}", digits=0, ratio=True, chart=True),
            Figure(f"{task}_mib", f"MiB above the start, {label}", digits=0, ratio=True),
            Figure(f"{task}_computed", f"tokens computed for a real one, {label}", digits=2),
        )
    ),
    plan=plan,
    rounds=3,
    baseline="padded",
    targets=(
        Target("ours", "mrpc16_milliseconds", 0.78, of_ratio=True),
        Target("ours", "mrpc32_milliseconds", 0.78, of_ratio=True),
        Target("ours", "chats_milliseconds", 0.5, of_ratio=True),
        Target("ours", "chats_mib", 0.65, of_ratio=True),
    ),
    by_default=False,
)
