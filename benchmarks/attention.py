"""Causal attention, forward and backward, as a layer of a Llama has it: its processor time and memory by length."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from .benchmark import Benchmark, Entry, Figure, Options, Plan, Target
from .language import MIB, highest
from .worker import measure_in_process

LABELS = {"ours": "mps_trainer, in chunks", "torch": "torch, all scores, as on mps"}
LENGTHS = (512, 1024, 2048, 4096)


def plan(options: Options) -> Plan:
    settings = {"heads": 8, "key_heads": 2, "size": 64, "times": 1 if options.quick else 3}
    lengths = LENGTHS[:2] if options.quick else LENGTHS
    entries = {peer: Entry(label, partial(_run, peer, lengths, settings)) for peer, label in LABELS.items()}
    return Plan(entries, settings)


def _run(peer: str, lengths: tuple[int, ...], settings: dict[str, Any], _: int) -> dict[str, Any]:
    found: dict[str, Any] = {"learned": {}}
    for length in lengths:
        one = measure_in_process("attention", peer=peer, length=length, **settings)
        found["learned"] |= one.pop("learned")
        found |= one
    return found


def measure(peer: str, length: int, heads: int, key_heads: int, size: int, times: int, folder: str) -> dict[str, Any]:
    """Returns the processor time of a pass forward and backward, and the highest memory above the start."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention
    from transformers.masking_utils import causal_mask_function

    from mps_trainer.model.attention_masks import ChunkedMask, reach_of
    from mps_trainer.model.chunked_attention import chunked_attention

    torch.manual_seed(0)
    mask = ChunkedMask(causal_mask_function, reach_of(causal_mask_function), 1, length, length, torch.device("cpu"))
    shapes = [(1, count, length, size) for count in (heads, key_heads, key_heads)]
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
    direction = torch.randn(1, length, heads, size)

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if peer == "ours":
            return chunked_attention(query, key, value, mask, size**-0.5)
        with sdpa_kernel(SDPBackend.MATH):
            return scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True).transpose(1, 2)

    start, spent = highest(), []
    gradients: tuple[torch.Tensor, ...] = ()
    for _ in range(times + 1):
        begun = time.process_time()
        gradients = torch.autograd.grad(attend(*inputs), inputs, direction)
        spent.append(time.process_time() - begun)
    return {
        f"milliseconds_{length}": 1000 * sorted(spent[1:])[times // 2],
        f"mib_{length}": (highest() - start) / MIB,
        "learned": {f"sum of the gradients, {length}": sum(each.abs().sum().item() for each in gradients)},
    }


BENCHMARK = Benchmark(
    title="Causal attention with gradients, 8 heads and 2 key heads of 64 numbers",
    figures=(
        *(Figure(f"milliseconds_{n}", f"ms, {n:,} tokens", digits=0, ratio=True, chart=True) for n in LENGTHS),
        *(Figure(f"mib_{n}", f"MiB, {n:,} tokens", digits=0, ratio=True) for n in LENGTHS),
    ),
    plan=plan,
    rounds=5,
    baseline="torch",
    targets=(
        Target("ours", "milliseconds_1024", 0.7, of_ratio=True),
        Target("ours", "milliseconds_4096", 0.5, of_ratio=True),
    ),
    by_default=False,
)
