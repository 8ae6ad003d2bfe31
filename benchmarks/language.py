"""A step of a Llama, full and with LoRA: the memory it needs, its time, and its operators on the simulated device."""

from __future__ import annotations

import importlib.util
import time
from functools import partial
from typing import Any

from .benchmark import Benchmark, Entry, Figure, Options, Plan, Target
from .overhead import milliseconds_per_step
from .worker import measure_in_process

LABELS = {"ours": "mps_trainer", "transformers": "transformers Trainer"}
LENGTH = 512
MIB = 2**20


def plan(options: Options) -> Plan:
    settings = {"steps": 6, "warm_up": 1, "words": 65536, "examples": 4, "counted_steps": 50}
    if options.quick:
        settings = {"steps": 3, "warm_up": 1, "words": 4096, "examples": 1, "counted_steps": 8}
    absent = {} if importlib.util.find_spec("peft") else {"lora": "peft is not installed"}
    ways = [way for way in ("full", "lora") if way not in absent]
    entries = {
        peer: Entry(label, partial(_run, peer, ways, settings))
        for peer, label in LABELS.items()
        if peer in options.peers
    }
    return Plan(entries, settings, absent)


def _run(peer: str, ways: list[str], settings: dict[str, Any], round_: int) -> dict[str, Any]:
    found: dict[str, Any] = {"learned": {}}
    for way in ways:
        of_step = {name: value for name, value in settings.items() if name != "counted_steps"}
        one = measure_in_process("language", peer=peer, way=way, **of_step)
        found["learned"] |= one.pop("learned")
        found |= one
        counted = measure_in_process("llama_operators", peer=peer, way=way, steps=settings["counted_steps"])
        found["learned"] |= counted.pop("learned")
        found |= counted
    return found


def measure(peer: str, way: str, steps: int, warm_up: int, words: int, examples: int, folder: str) -> dict[str, Any]:
    """The highest memory of the process above that before training, and the processor time of a step."""
    import torch
    import transformers

    import mps_trainer

    torch.manual_seed(0)
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8}
    config = transformers.LlamaConfig(vocab_size=words, num_key_value_heads=4, tie_word_embeddings=True, **sizes)
    model: Any = transformers.LlamaForCausalLM(config)
    if way == "lora":
        from peft import LoraConfig, get_peft_model

        adapter = LoraConfig(task_type="CAUSAL_LM", r=8, target_modules=["q_proj", "v_proj"])
        model = get_peft_model(model, adapter)
    tokens = torch.randint(0, words, (steps * examples, LENGTH))
    library: Any = mps_trainer if peer == "ours" else transformers
    settings = {"per_device_train_batch_size": examples, "max_steps": steps, "learning_rate": 1e-3, "use_cpu": True}
    quiet = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "logging_steps": steps}
    arguments = library.TrainingArguments(folder, **settings, **quiet)
    data = [{"input_ids": row, "labels": row} for row in tokens]
    begun: list[float] = []
    watch = model.register_forward_pre_hook(lambda *_: begun.append(time.process_time()))
    trainer = library.Trainer(model, arguments, train_dataset=data)
    start = highest()
    result = trainer.train()
    watch.remove()
    return {
        f"{way}_mib": (highest() - start) / MIB,
        f"{way}_milliseconds": milliseconds_per_step(begun, warm_up),
        "learned": {f"{way} loss": result.training_loss},
    }


def highest() -> int:
    """Returns the most memory that this process has had, in bytes."""
    import resource
    import sys

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


BENCHMARK = Benchmark(
    title="A step of a language model with 65,536 words and 2,048 tokens",
    figures=(
        Figure("full_mib", "MiB at most, above the start", digits=0, ratio=True, chart=True),
        Figure("lora_mib", "MiB with LoRA", digits=0, ratio=True, chart=True),
        Figure("full_milliseconds", "ms a step", digits=0, ratio=True, chart=True),
        Figure("lora_milliseconds", "ms a step with LoRA", digits=0, ratio=True, chart=True),
        Figure("full_operators", "operators, small model", digits=0, ratio=True, chart=True),
        Figure("lora_operators", "operators with LoRA", digits=0, ratio=True, chart=True),
        Figure("full_blocking_reads", "blocking syncs", digits=0),
        Figure("lora_blocking_reads", "syncs with LoRA", digits=0),
    ),
    plan=plan,
    rounds=3,
    baseline="transformers",
    targets=(Target("ours", "full_operators", 240), Target("ours", "lora_operators", 320)),
    by_default=False,
)
