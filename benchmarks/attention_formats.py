"""Error and bytes of attention in blocks with some of its products in 16 bits, on the simulated mps device.

`python -m benchmarks.attention_formats` prints two tables. In the first, errors are against float64 for the same
inputs, as a multiple of the error of torch's own attention in the same number format, which computes in float32. The
second is about `chunked_attention` with and without torch's fused kernel. Bytes are what the operators read and write.
"""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mps_trainer.simulator  # before torch, so that it can take CUDA out of the process

# isort: split
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROWS = 256  # queries in a block


@dataclass(frozen=True)
class Formats:
    """The parts that are in 16 bits; all others are in float32. Each product is summed in float32 and rounded.

    Attributes:
        scores: of queries and keys.
        weights: as factors in the result and the gradient of the values.
        weight_gradients: of the result's gradient and the values. With `score_gradients`, softmax's backward pass then
            reads and writes 16 bits.
        score_gradients: as factors in the gradients of queries and keys.
        softmax: as the softmax reads scores and writes weights.
    """

    scores: bool = False
    weights: bool = False
    weight_gradients: bool = False
    score_gradients: bool = False
    softmax: bool = False


VARIANTS = {
    "float32, as it is": Formats(),
    "gradients of the scores in 16 bits": Formats(score_gradients=True),
    "weights and gradients of the scores in 16 bits": Formats(weights=True, score_gradients=True),
    "all but the scores in 16 bits": Formats(weights=True, weight_gradients=True, score_gradients=True),
    "all in 16 bits, but the softmax": Formats(True, True, True, True),
    "all in 16 bits": Formats(True, True, True, True, True),
}
NAMES = ("result", "gradient of queries", "of keys", "of values")


class Counted(TorchDispatchMode):
    """Counts operators, and the bytes that they read and write. Views move nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view and "empty" not in str(func):
            tensors = [each for each in tree_leaves((args, kwargs, result)) if isinstance(each, torch.Tensor)]
            self.operators += 1
            self.bytes += sum(each.numel() * each.itemsize for each in tensors)
        return result


def attend(inputs: list[torch.Tensor], formats: Formats) -> list[torch.Tensor]:
    """Returns causal attention and the gradients of queries, keys and values, computed in blocks of queries.

    Args:
        inputs: queries, keys, values and the gradient of the result, of heads x tokens x size.
    """
    query = inputs[0]
    half, full = query.dtype, torch.float32
    scale = query.shape[-1] ** -0.5
    halves, fulls = inputs, [each.to(full) for each in inputs]
    results = [torch.empty_like(query), torch.empty_like(query)]
    sums = [torch.zeros_like(fulls[0]), torch.zeros_like(fulls[0])]
    for start in range(0, query.shape[1], ROWS):
        rows, seen = slice(start, start + ROWS), slice(0, start + ROWS)
        of_scores, of_weights, of_gradients, of_products = (
            [
                each[:, where]
                for each, where in zip(halves if is_half else fulls, (rows, seen, seen, rows), strict=True)
            ]
            for is_half in (formats.scores, formats.weights, formats.weight_gradients, formats.score_gradients)
        )
        # the forward pass, and the same again for the backward pass
        for is_backward in (False, True):
            scores = torch.bmm(of_scores[0], of_scores[1].transpose(1, 2))
            scores = (scores if formats.softmax else scores.to(full)).mul_(scale)
            hidden = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).triu_(start + 1)
            weights = torch.softmax(scores.masked_fill_(hidden, -math.inf), -1)
            given = weights.to(half) if formats.weights else weights
            if not is_backward:
                results[0][:, rows].copy_(torch.bmm(given, of_weights[2]))
        _add(sums[1][:, seen], given, of_weights[3])
        changes = torch.bmm(of_gradients[3], of_gradients[2].transpose(1, 2))
        kept = given if formats.weight_gradients else weights
        slopes = torch.ops.aten._softmax_backward_data(changes, kept, -1, kept.dtype)
        slopes = slopes.to(half) if formats.score_gradients else slopes
        _add(sums[0][:, seen], slopes, of_products[0])
        results[1][:, rows].copy_(torch.bmm(slopes, of_products[1]).mul_(scale))
    return [*results, sums[0].mul_(scale).to(half), sums[1].to(half)]


def _add(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    if left.dtype is total.dtype:
        total.baddbmm_(left.transpose(1, 2), right)
    else:
        total.add_(torch.bmm(left.transpose(1, 2), right))


def reference(inputs: list[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    """Returns what `attend` returns, by torch's attention in `dtype`."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    leaves = [each.cpu().to(dtype).requires_grad_() for each in inputs[:3]]
    query, key, value = (each[None] for each in leaves)
    with sdpa_kernel(SDPBackend.MATH):
        result = scaled_dot_product_attention(query, key, value, is_causal=True)[0]
    gradients = torch.autograd.grad(result, leaves, inputs[3].cpu().to(dtype))
    return [each.detach().double() for each in (result, *gradients)]


def measure(variant: str, dtype: torch.dtype, spread: float, length: int, device: str = "mps") -> dict[str, float]:
    """Returns the errors as multiples of torch's, the bytes for each score that is seen or not, and the operators.

    Args:
        spread: the standard deviation of queries and keys; that of the scores is its square.
    """
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, length, 64, generator=generator) * each for each in (spread, spread, 1, 1)]
    inputs = [each.to(dtype) for each in inputs]
    exact, torchs = (reference(inputs, kind) for kind in (torch.float64, dtype))
    given = [each.to(device) for each in inputs]
    with Counted() as counted:
        found = attend(given, VARIANTS[variant])
    errors = {
        name: (_size(one.cpu().double() - right) / _size(own - right)).item()
        for name, one, own, right in zip(NAMES, found, torchs, exact, strict=True)
    }
    return {**errors, "bytes": counted.bytes, "operators": counted.operators}


def measure_chunked(is_fused: bool, length: int) -> dict[str, int]:
    """Returns operators and bytes of `chunked_attention`, in the forward pass and in both passes."""
    from unittest import mock

    from transformers.masking_utils import causal_mask_function

    from mps_trainer.devices import fused_attention
    from mps_trainer.model.attention_masks import ChunkedMask, reach_of
    from mps_trainer.model.chunked_attention import chunked_attention

    where = torch.device("mps")
    mask = ChunkedMask(causal_mask_function, reach_of(causal_mask_function), 1, length, length, where)
    query, key, value = (
        torch.zeros(1, heads, length, 64, dtype=torch.bfloat16, device=where, requires_grad=True)
        for heads in (8, 2, 2)
    )
    with mock.patch.object(fused_attention, "_has_kernel", return_value=is_fused), Counted() as counted:
        result = chunked_attention(query, key, value, mask, 0.125)
        found = {"forward operators": counted.operators, "forward bytes": counted.bytes}
        torch.autograd.grad(result, (query, key, value), torch.zeros_like(result))
    return {**found, "operators": counted.operators, "bytes": counted.bytes}


def _size(errors: torch.Tensor) -> torch.Tensor:
    return errors.square().mean().sqrt()


@contextlib.contextmanager
def _device() -> Iterator[str]:
    with mps_trainer.simulator.simulated_mps():
        yield "mps"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=1024)
    length = parser.parse_args(arguments).length
    cases = {
        "bf16, spread 1": (torch.bfloat16, 1.0),
        "bf16, spread 4": (torch.bfloat16, 2.0),
        "fp16, spread 1": (torch.float16, 1.0),
    }
    print(f"| products | {' | '.join(cases)} | MB | operators |")
    print("| --- |" + " ---: |" * (len(cases) + 2))
    with _device() as device:
        for variant in VARIANTS:
            found = [measure(variant, *case, length, device) for case in cases.values()]
            worst = [" ".join(f"{one[name]:.2f}" for name in NAMES) for one in found]
            print(f"| {variant} | {' | '.join(worst)} | {found[0]['bytes'] / 1e6:.0f} | {found[0]['operators']:.0f} |")
        print("\n| tokens | forward pass in | its operators | its MB | operators of both | MB of both |")
        print("| ---: | --- |" + " ---: |" * 4)
        for tokens in (length, 4 * length):
            for name, is_fused in (("blocks", False), ("the fused kernel", True)):
                counts = measure_chunked(is_fused, tokens)
                numbers = [f"{value / 1e6:,.0f}" if "bytes" in key else str(value) for key, value in counts.items()]
                print(f"| {tokens:,} | {name} | {' | '.join(numbers)} |")


if __name__ == "__main__":
    main()
