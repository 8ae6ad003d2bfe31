"""Measures the memory of host and simulated device together while weights are loaded, beside the weights' own."""

from __future__ import annotations

import ctypes
import gc
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn

from mps_trainer import Trainer
from mps_trainer.scripts.loading import straight_to_device
from tests.conftest import examples

MOST = 1.2  # times the weights
M_MMAP_THRESHOLD = -3  # glibc returns larger allocations, in bytes, when they are freed

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="measures as Linux does")


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


def assert_loaded(model: nn.Module, saved: nn.Module) -> None:
    assert all(weight.device.type == "mps" for weight in model.parameters())
    for weight, expected in zip(model.parameters(), saved.parameters(), strict=True):
        assert weight.dtype == expected.dtype
        assert torch.equal(weight.cpu(), expected)


@pytest.mark.parametrize(
    ("make", "shard"),
    [
        (llama, "100MB"),
        (llama, "5GB"),
        (lambda: llama(torch.bfloat16), "5GB"),
        (lambda: nn.Sequential(nn.Embedding(40_000, 1024)), None),
    ],
)
def test_resume_reads_weights_in_blocks_without_a_second_copy(make_args, mps, tmp_path, make, shard):
    saved, trainer = make(), Trainer(make(), make_args())
    if shard is None:
        Trainer(saved, make_args(use_cpu=True)).save_model(str(tmp_path))
    else:
        saved.save_pretrained(tmp_path, max_shard_size=shard)
    with Peak() as peak:
        trainer._load_from_checkpoint(str(tmp_path))
    assert size(saved) + peak.bytes <= MOST * size(saved)
    assert_loaded(trainer.model, saved)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("asked", ["auto", "float32"])
def test_examples_load_straight_to_the_device(make_args, mps, tmp_path, stored, asked):
    saved = llama(stored)
    saved.save_pretrained(tmp_path)
    load, args = transformers.LlamaForCausalLM.from_pretrained, make_args()
    llama(layers=1).save_pretrained(tmp_path / "small")
    load(tmp_path / "small", device_map="mps")  # imports what loading needs
    peaks = []
    for _ in range(3):  # earlier tests and the allocator can only add to one
        model = None
        with Peak() as peak, straight_to_device(args) as device:
            model = Trainer(load(tmp_path, dtype=asked, **device), args).model
        peaks.append(peak.bytes)
    assert min(peaks) <= MOST * size(model)
    assert_loaded(model, saved if asked == "auto" else saved.float())


def test_threads_of_transformers_are_on_again_afterwards(monkeypatch):
    args = SimpleNamespace(device=torch.device("mps"), fsdp=[])
    monkeypatch.delenv("HF_DEACTIVATE_ASYNC_LOAD", raising=False)
    with straight_to_device(args):
        assert os.environ["HF_DEACTIVATE_ASYNC_LOAD"] == "1"
    assert "HF_DEACTIVATE_ASYNC_LOAD" not in os.environ
    args.device = torch.device("cpu")
    with straight_to_device(args) as device:
        assert device == {}
        assert "HF_DEACTIVATE_ASYNC_LOAD" not in os.environ


def test_model_init_makes_no_second_model(make_args, mps):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.large, self.head = nn.Linear(6000, 6000), nn.Linear(4, 2)
            self.large.requires_grad_(False)

        def forward(self, x, labels):
            return {"loss": nn.functional.cross_entropy(self.head(x), labels)}

    trainer = Trainer(args=make_args(max_steps=1), train_dataset=examples(8), model_init=Model)
    gc.collect()
    others = mps.counters()["bytes_live"] - size(trainer.model)  # earlier tests have left these
    for _ in range(2):
        mps.reset()
        trainer.train()
        assert mps.counters()["bytes_peak"] - others <= MOST * size(trainer.model)
