"""The workloads: what is trained or called, in which sizes, and the figures that others publish for the same work.

All weights and tokens are random, because the time of a step does not depend on them. Each workload also has smaller
sizes, for `--quick` where no GPU computes; no published figure belongs to these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

ROWS = 64  # of the training set; runs that need more pass over it again


@dataclass(frozen=True)
class Plan:
    """Says how long to measure.

    Args:
        quick: leave out the workloads that take long.
        rounds: the number of rounds, each with one run of both sides.
        seconds: the length of the timed part of a run.
        budget: begin no further round of a workload once it has taken this many seconds, after the second one.
    """

    quick: bool
    rounds: int
    seconds: float
    budget: float


QUICK = Plan(quick=True, rounds=2, seconds=0.5, budget=20.0)
FULL = Plan(quick=False, rounds=5, seconds=3.0, budget=60.0)


@dataclass(frozen=True)
class Task:
    """Holds what both Trainers train: a model on the CPU, its rows, and the number of rows in a step."""

    model: nn.Module
    rows: list[dict[str, torch.Tensor]]
    batch_size: int


@dataclass(frozen=True)
class Workload:
    """One row of the result.

    Args:
        name: what `--json` and the table call it.
        sizes: what is computed, in words; `smaller` in the smaller sizes.
        make: returns the Task, or the two functions to call, by whether the sizes are the real ones. For an operation
            it also gets the device.
        published: a figure that others publish for `sizes`, with its source.
        is_training: False for an operation.
        in_quick: False if `--quick` leaves it out.
        package: an optional package that it needs.
        has_own: True for an operation that this package has a function of its own for.
    """

    name: str
    sizes: str
    smaller: str
    make: Callable[..., Any]
    published: str | None = None
    is_training: bool = True
    in_quick: bool = True
    package: str | None = None
    has_own: bool = False


@dataclass(frozen=True)
class Operation:
    """Two functions to time, `ours` and that of torch. Each call runs `calls` operations.

    `ours` is None if this package has none of its own.
    """

    torch: Callable[[], object]
    ours: Callable[[], object] | None = None
    calls: int = 1


def _random_rows(words: int, length: int, labels: int | None) -> list[dict[str, torch.Tensor]]:
    """Returns rows of tokens without padding. Without a number of `labels` the tokens are the labels."""
    tokens = torch.randint(words, (ROWS, length))
    if labels is None:
        return [{"input_ids": row, "labels": row} for row in tokens]
    mask, classes = torch.ones(length, dtype=torch.long), torch.randint(labels, (ROWS,))
    return [{"input_ids": row, "attention_mask": mask, "labels": c} for row, c in zip(tokens, classes, strict=True)]


def _lora(is_real: bool, length: int, every_layer: bool) -> Task:
    """Returns a Qwen3 with LoRA; `every_layer`: on all of its linear layers instead of two in the last 16 layers."""
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    }
    if not is_real:
        small = {"vocab_size": 1024, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2}
        sizes |= small | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
        length //= 16
    layers = sizes["num_hidden_layers"]
    modules: list[str] | str = ["q_proj", "v_proj"]
    chosen: list[int] | None = list(range(max(layers - 16, 0), layers))
    if every_layer:
        modules, chosen = "all-linear", None
    config = Qwen3Config(**sizes, max_position_embeddings=40960, tie_word_embeddings=True)
    adapter = LoraConfig(
        task_type="CAUSAL_LM", r=16 if every_layer else 8, target_modules=modules, layers_to_transform=chosen
    )
    base = _in_bfloat16(lambda: Qwen3ForCausalLM(config))
    return Task(get_peft_model(base, adapter), _random_rows(sizes["vocab_size"], length, None), 1)


def _in_bfloat16(make: Callable[[], nn.Module]) -> Any:
    """Returns the model of `make`, with its weights made in bfloat16: a copy in float32 would not fit some Macs."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        return make()
    finally:
        torch.set_default_dtype(before)


class Embedder(nn.Module):
    """Embeds two texts by the mean of their tokens, with InfoNCE as the loss: a text's pair against all others."""

    scale = 20.0

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, anchor: torch.Tensor, positive: torch.Tensor) -> dict[str, torch.Tensor]:
        one, other = (
            nn.functional.normalize(self.encoder(input_ids=tokens).last_hidden_state.mean(1), dim=-1)
            for tokens in (anchor, positive)
        )
        scores = self.scale * one @ other.T
        pairs = torch.arange(len(scores), device=scores.device)
        return {"loss": nn.functional.cross_entropy(scores, pairs)}


def _embeddings(is_real: bool) -> Task:
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
    pairs, length = 32, 128
    if not is_real:
        config = BertConfig(
            vocab_size=1024, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
        )
        pairs, length = 8, 32
    model = _in_bfloat16(lambda: Embedder(BertModel(config, add_pooling_layer=False)))
    tokens = torch.randint(config.vocab_size, (2, max(ROWS, pairs), length))
    return Task(model, [{"anchor": a, "positive": p} for a, p in zip(*tokens, strict=True)], pairs)


def _classifier(is_real: bool) -> Task:
    from transformers import BertConfig, BertForSequenceClassification

    config, batch_size, length = BertConfig(), 32, 128
    if not is_real:
        config = BertConfig(
            vocab_size=1024, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
        )
        batch_size, length = 8, 32
    rows = _random_rows(config.vocab_size, length, labels=2)
    return Task(BertForSequenceClassification(config), rows, batch_size)


def _attention(is_real: bool, device: torch.device) -> Operation:
    """Returns attention without a mask, forward and backward: that of long texts in this Trainer, and torch's."""
    from transformers.masking_utils import bidirectional_mask_function

    from ...model.attention_masks import ChunkedMask, reach_of
    from ...model.chunked_attention import chunked_attention

    length, size = 4096 if is_real else 512, 64
    shape = 1, 8, length, size
    query, key, value = (torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    visible = bidirectional_mask_function
    mask = ChunkedMask(visible, reach_of(visible), 1, length, length, device)
    direction = torch.randn(1, length, 8, size, device=device, dtype=torch.bfloat16)

    def of_torch() -> object:
        out = nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2)
        return torch.autograd.grad(out, (query, key, value), direction)

    def ours() -> object:
        out = chunked_attention(query, key, value, mask, size**-0.5)
        return torch.autograd.grad(out, (query, key, value), direction)

    return Operation(of_torch, ours)


def _dispatch(is_real: bool, device: torch.device) -> Operation:
    one, calls = torch.zeros(1, device=device), 500

    def add() -> None:
        for _ in range(calls):
            one.add_(1)

    return Operation(add, calls=calls)


def _wait(is_real: bool, device: torch.device) -> Operation:
    one, calls = torch.zeros(1, device=device), 50

    def read() -> None:
        for _ in range(calls):
            one.add_(1).item()

    return Operation(read, calls=calls)


def _copy(is_real: bool, device: torch.device) -> Operation:
    rows, calls = torch.zeros(32, 128, dtype=torch.long), 50

    def copy() -> None:
        for _ in range(calls):
            rows.to(device, copy=True)

    return Operation(copy, calls=calls)


_MLX_TUNE = "mlx-tune's performance page, M4 Pro with 48 GB: "
WORKLOADS = (
    Workload(
        "LoRA",
        "Qwen3-0.6B in bf16, 1 text of 1,024 tokens, rank 8 on q and v of 16 layers",
        "a Qwen3 of 2 layers, 1 text of 64 tokens",
        lambda is_real: _lora(is_real, 1024, every_layer=False),
        _MLX_TUNE + "about 2.2 steps/s, 2.6 GB",
        package="peft",
    ),
    Workload(
        "LoRA on a long text",
        "Qwen3-0.6B in bf16, 1 text of 4,096 tokens, rank 16 on all linear layers",
        "a Qwen3 of 2 layers, 1 text of 256 tokens",
        lambda is_real: _lora(is_real, 4096, every_layer=True),
        _MLX_TUNE + "about 0.28 steps/s, 18 GB",
        in_quick=False,
        package="peft",
    ),
    Workload(
        "embeddings",
        "MiniLM-L6 in bf16, InfoNCE, 32 pairs of 128 tokens",
        "a BERT of 2 layers, 8 pairs of 32 tokens",
        _embeddings,
        _MLX_TUNE + "about 25 ms a step, below 0.5 GB",
    ),
    Workload(
        "classifier",
        "BERT-base in fp32, 32 texts of 128 tokens",
        "a BERT of 2 layers, 8 texts of 32 tokens",
        _classifier,
    ),
    Workload(
        "attention, forward and backward",
        "4,096 tokens, 8 heads of 64, bf16, no mask",
        "512 tokens",
        _attention,
        "mps-sdpa 0.2.0, M4, torch 2.13 nightly: torch 154 ms, mps-sdpa 64.8 ms",
        is_training=False,
        has_own=True,
    ),
    Workload(
        "an operator",
        "adds to one number, without waiting",
        "",
        _dispatch,
        "scvi-tools pull request 3998: 11.14 µs on mps, 7.35 µs on the CPU",
        is_training=False,
    ),
    Workload("a wait", "adds to one number and reads it", "", _wait, is_training=False),
    Workload("a copy to the device", "a batch of 32 x 128 tokens", "", _copy, is_training=False),
)
