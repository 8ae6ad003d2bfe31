"""The run that is killed. It is small, with everything in it that a resumed run has to restore."""

import hashlib
import json
import os
import random
from pathlib import Path
from typing import Any

from tests.conftest import on_device, without_times  # before torch, so that its build for CUDA can simulate the device

# isort: split
import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

STEPS = 24
MET = "met"  # this file is written when all processes have found each other

PERSISTENT = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation": {"gradient_accumulation_steps": 2},
    "workers": {"dataloader_num_workers": 1},
    "buckets": {"train_sampling_strategy": "bucket_by_length"},
    "evaluation": {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 2, "load_best_model_at_end": True},
    "persistent workers, evaluation": {**PERSISTENT, "eval_strategy": "steps", "eval_steps": 4},
    # The order of groups is drawn from torch's global generator.
    "persistent workers, grouped": {**PERSISTENT, "train_sampling_strategy": "group_by_length"},
    "in the foreground": {"save_async": False},
}
OF_SEVERAL: dict[str, dict[str, Any]] = {  # for several processes
    "over MLX": {"ddp_backend": "mlx"},  # on mps all are
    "sharded": {"fsdp": True, "fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT"}},
    "sharded, saved whole": {"fsdp": True, "fsdp_config": {"state_dict_type": "FULL_STATE_DICT"}},
}
ON_REQUEST: dict[str, dict[str, Any]] = {  # not in a series without --variant
    "LoRA on MLX's 4-bit weights": {"quantized": True, "gradient_checkpointing": True},
}


def variants(processes: int) -> list[str]:
    return [*VARIANTS, *(OF_SEVERAL if processes > 1 else ())]


class Sentences(Dataset):
    """A dataset of token ids of different lengths, changed a little at random at each access."""

    column_names = ("input_ids", "labels")

    def __init__(self, count: int = 40) -> None:
        draw = random.Random(0)
        self.rows = [[draw.randrange(1, 50) for _ in range(draw.randrange(3, 20))] for _ in range(count)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int | str) -> Any:
        if isinstance(index, str):  # a whole column
            return self.rows if index == "input_ids" else [sum(row) % 2 for row in self.rows]
        row = list(self.rows[index])
        row[random.randrange(len(row))] = int(np.random.randint(1, 50))
        row[int(torch.randint(len(row), ()))] = 1
        return {"input_ids": row, "labels": sum(self.rows[index]) % 2}


class Classifier(nn.Module):
    """A model that takes a while to write, and a step of which is short."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2000, 64)
        self.dropout = nn.Dropout(0.2)
        self.hidden = nn.Linear(64, 64)
        self.head = nn.Linear(64, 2)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.head(torch.tanh(self.hidden(self.dropout(self.embedding(input_ids)).mean(1))))
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def adapted_llama(folder: Path) -> nn.Module:
    """Returns a Llama with weights in MLX's format and an adapter of LoRA with dropout."""
    from peft import LoraConfig, get_peft_model

    from mps_trainer import load_mlx_model
    from tests.mlx_format import save_quantized
    from tests.tiny import tiny

    path = folder.parent / "quantized llama"
    if not path.exists():
        save_quantized(tiny("LlamaForCausalLM", hidden_size=32, intermediate_size=64), path)
    adapter = LoraConfig(task_type="CAUSAL_LM", r=4, lora_dropout=0.2, target_modules="all-linear")
    torch.manual_seed(0)
    return get_peft_model(load_mlx_model(str(path), dtype=torch.float32), adapter)


def collate_texts(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    ids = collate(rows)["input_ids"]
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": ids.masked_fill(ids == 0, -100)}


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    width = 20
    ids = [row["input_ids"] + [0] * (width - len(row["input_ids"])) for row in rows]
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor([row["labels"] for row in rows])}


def train(library: str, folder: Path, variant: str, device: str) -> None:
    """Trains into `folder`, from its newest checkpoint if there is one, and writes the outcome as JSON."""
    torch.set_num_threads(1)
    with on_device(device):
        trainer = _trainer(library, folder, {**VARIANTS, **OF_SEVERAL, **ON_REQUEST}[variant], device)
        processes = trainer.args.world_size if library == "mps_trainer" else 1
        if processes > 1:
            (folder / MET).touch()
        resume = any(folder.glob("checkpoint-*"))
        trainer.train(resume_from_checkpoint=resume or None)
        result = outcome(trainer)
        if processes > 1:
            results: list[Any] = [None] * processes
            torch.distributed.all_gather_object(results, result)
            result["others"] = [each["everything"] for each in results[1:]]
            if not trainer.is_world_process_zero():
                return
    (folder / "outcome.tmp").write_text(json.dumps(result))
    os.replace(folder / "outcome.tmp", folder / "outcome.json")


def _trainer(library: str, folder: Path, settings: dict[str, Any], device: str) -> Any:
    if library == "transformers":
        from transformers import Trainer, TrainingArguments

        settings = {name: value for name, value in settings.items() if name != "save_async"}
    else:
        from mps_trainer import Trainer, TrainingArguments
    common = {
        "output_dir": str(folder), "max_steps": STEPS, "save_strategy": "steps", "save_steps": 1, "logging_steps": 2,
        "learning_rate": 1e-2, "lr_scheduler_type": "cosine", "per_device_train_batch_size": 4, "log_level": "error",
        "use_cpu": device == "cpu", "disable_tqdm": True, "report_to": "none", "save_total_limit": 3,
        "ddp_timeout": 30, "dataloader_pin_memory": False,
    }  # fmt: skip
    torch.manual_seed(0)
    data: dict[str, Any] = {"train_dataset": Sentences(), "eval_dataset": Sentences(12), "data_collator": collate}
    settings = dict(settings)
    if not settings.pop("quantized", False):
        return Trainer(Classifier(), TrainingArguments(**(common | settings)), **data)
    data["data_collator"] = collate_texts
    return Trainer(adapted_llama(folder), TrainingArguments(**(common | settings)), **data)


def own(tensor: Any) -> torch.Tensor:
    return (tensor.to_local() if hasattr(tensor, "to_local") else tensor).cpu()


def outcome(trainer: Any) -> dict[str, Any]:
    """Returns everything that must not depend on whether the run was interrupted."""
    digest = hashlib.sha256()
    for name, tensor in sorted(trainer.model.state_dict().items()):
        digest.update(name.encode() + own(tensor).numpy().tobytes())
    weights = digest.hexdigest()
    for entry in trainer.optimizer.state_dict()["state"].values():
        for _, value in sorted(entry.items()):
            digest.update(own(torch.as_tensor(value)).numpy().tobytes())
    digest.update(repr(sorted(trainer.lr_scheduler.state_dict().items(), key=str)).encode())
    digest.update(torch.get_rng_state().numpy().tobytes() + repr(random.getstate()).encode())
    digest.update(np.random.get_state()[1].tobytes())
    return {
        "steps": trainer.state.global_step,
        "weights": weights,
        "everything": digest.hexdigest(),
        "logs": [entry for entry in without_times(trainer.state.log_history) if "train_loss" not in entry],
    }
