"""Prints the peak memory of loading weights: `python -m tests.checkpoints.loading_memory`.

A process of its own measures it: what earlier tests left in a worker's allocator would be counted as well. The memory
is that of host and simulated device together, beside the weights' own. The output is a line of JSON that has, for
each case, "peak" in times of the weights, and "same", True if the model has the saved weights on the device.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from mps_trainer import simulator  # before torch, so that its build for CUDA can simulate the device

# isort: split

import torch
import transformers
from torch import nn

from mps_trainer import Trainer, TrainingArguments
from mps_trainer.scripts.loading import straight_to_device

M_MMAP_THRESHOLD = -3  # glibc returns larger allocations, in bytes, when they are freed


class Peak:
    """Measures the memory of the process, which includes the simulated device's, above what it was at the start."""

    def __enter__(self) -> Peak:
        gc.collect()
        torch.mps.empty_cache()
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 1 << 17)  # else memory that is freed meanwhile would still be counted
        libc.malloc_trim(0)  # else memory that earlier tests freed would be used without being seen
        Path("/proc/self/clear_refs").write_text("5")  # sets VmHWM to VmRSS
        self._start = self._resident("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        self.bytes = self._resident("VmHWM") - self._start
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the most that glibc sets by itself

    def _resident(self, field: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


def llama(dtype: torch.dtype = torch.float32, layers: int = 6) -> nn.Module:
    sizes = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": layers, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=2000, **sizes)  # small: the peak has the largest weight twice
    return transformers.LlamaForCausalLM(config).to(dtype)


def size(model: nn.Module) -> int:
    return sum(weight.nbytes for weight in model.parameters())


def embedding() -> nn.Module:
    return nn.Sequential(nn.Embedding(40_000, 1024))


def is_on_device(model: nn.Module, saved: nn.Module) -> bool:
    """Returns whether each weight of `model` is on the simulated device, and has type and values of `saved`'s."""
    return all(
        weight.device.type == "mps" and weight.dtype == expected.dtype and torch.equal(weight.cpu(), expected)
        for weight, expected in zip(model.parameters(), saved.parameters(), strict=True)
    )


RESUMED: dict[str, tuple[Callable[[], nn.Module], str | None]] = {
    "resumed shards": (llama, "100MB"),
    "resumed file": (llama, "5GB"),
    "resumed bfloat16": (lambda: llama(torch.bfloat16), "5GB"),
    "resumed module": (embedding, None),
}
LOADED = {
    f"{stored} loaded as {asked}": (getattr(torch, stored), asked)
    for stored in ("float32", "bfloat16")
    for asked in ("auto", "float32")
}
CASES = (*RESUMED, *LOADED)


def resume(case: str, folder: Path) -> dict[str, object]:
    make, shard = RESUMED[case]
    saved, trainer = make(), Trainer(make(), TrainingArguments(str(folder / "run"), report_to="none"))
    if shard is None:
        on_host = TrainingArguments(str(folder / "run"), report_to="none", use_cpu=True)
        Trainer(saved, on_host).save_model(str(folder))
    else:
        saved.save_pretrained(folder, max_shard_size=shard)
    with Peak() as peak:
        trainer._load_from_checkpoint(str(folder))
    return {"peak": 1 + peak.bytes / size(saved), "same": is_on_device(trainer.model, saved)}


def load(case: str, folder: Path) -> dict[str, object]:
    stored, asked = LOADED[case]
    saved = llama(stored)
    saved.save_pretrained(folder)
    load, args = transformers.LlamaForCausalLM.from_pretrained, TrainingArguments(str(folder / "run"))
    llama(layers=1).save_pretrained(folder / "small")
    load(folder / "small", device_map="mps")  # imports what loading needs
    with Peak() as peak, straight_to_device(args) as device:
        model = Trainer(load(folder, dtype=asked, **device), args).model
    expected = saved if asked == "auto" else saved.float()
    return {"peak": peak.bytes / size(model), "same": is_on_device(model, expected)}


def main() -> None:
    measured = {}
    with simulator.simulated_mps():
        for case in CASES:
            with tempfile.TemporaryDirectory() as folder:
                measured[case] = (resume if case in RESUMED else load)(case, Path(folder))
    json.dump(measured, sys.stdout)


if __name__ == "__main__":
    main()
