"""Reproduces each of the known faults: a small computation on a device, compared with the CPU.

Each takes a device and returns a clause that says what came out wrong, or None. None takes more than a few seconds,
and all but one take less than 100 MB. Those that need gigabytes run on Macs to which Metal recommends so much, and
raise CheckSkipped elsewhere. They follow what the issues describe; on a Mac none of them has run yet.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ..devices.facts import parse_version
from ..devices.large_products import INNER, MENDED_IN_2D
from ..model.activation_checkpointing import checkpoint_settings
from .results import CheckSkipped

Reproducer = Callable[[torch.device], str | None]

_RIGHT = 1e-3  # relative to the largest number; what is wrong differs by 1e-1 and more
_RIGHT_IN_16_BITS = 5e-2
_RIGHT_OF_LONG_ATTENTION = 1e-2  # a right one is off by 3e-3, the result's own rounding; the fault by 2.4e-2
_CHILD_SECONDS = 60

GIB = 2**30
MOST_BATCHES = 2**16  # as 16 bits count them
MOST_SIGNED, MOST_UNSIGNED = 2**31, 2**32  # elements, as 32 bits count them


def large_products(device: torch.device) -> str | None:
    """Sums 32,767 numbers and more, with other numbers right behind the operands, which must not count."""
    # from torch 2.14 on, sums of exactly 32,767 and 32,768 are what is left of the fault
    for inner in (40_000, *(() if parse_version(torch.__version__) >= MENDED_IN_2D else (INNER,))):
        a, b = _numbers((32, inner), (inner, 32))
        on_device, other = _before_large_numbers(a, device), _before_large_numbers(b, device)
        transposed = _before_large_numbers(a.t().contiguous(), device)
        for name, product in (("mm", on_device @ other), ("mm of a transposed matrix", transposed.t() @ other)):
            if wrong := _differs(product, a @ b):
                return f"{name} with {inner:,} numbers in each sum: {wrong}"
    return None


def large_batched_products(device: torch.device) -> str | None:
    for inner in (INNER, 40_000):
        a, b = _numbers((2, 16, inner), (2, inner, 16))
        product = torch.bmm(_before_large_numbers(a, device), _before_large_numbers(b, device))
        if wrong := _differs(product, a @ b):
            return f"bmm with {inner:,} numbers in each sum: {wrong}"
    return None


def linear_in_16_bits(device: torch.device) -> str | None:
    """Runs nn.Linear without bias over 3 dimensions, forward and backward, several times."""
    weight, x, gradient = _numbers((1024, 1024), (2, 13, 1024), (2, 13, 1024))
    weight /= 32
    for _ in range(3):
        there = x.to(device, torch.bfloat16).requires_grad_()
        y = F.linear(there, weight.to(device, torch.bfloat16))
        y.backward(gradient.to(device, torch.bfloat16))
        for name, found, expected in (("output", y, x @ weight.t()), ("gradient", there.grad, gradient @ weight)):
            if wrong := _differs(found, expected, _RIGHT_IN_16_BITS):
                return f"the {name} {wrong}"
    return None


def linear_with_bias(device: torch.device) -> str | None:
    x, weight, bias = _numbers((2, 64, 128), (384, 128), (384,))
    return _differs(F.linear(x.to(device), weight.to(device), bias.to(device)), F.linear(x, weight, bias))


def linear_of_strided(device: torch.device) -> str | None:
    x, weight = _numbers((48, 32), (48, 64))
    found = F.linear(x.to(device).t(), weight.to(device).t())
    return _differs(found, F.linear(x.t(), weight.t()))


def attention_of_few_queries(device: torch.device) -> str | None:
    """Attends with eight queries whose heads and length are swapped, as in BERT."""
    return _attention_differs(device, [tensor.transpose(1, 2) for tensor in _numbers(*3 * [(2, 8, 4, 64)])])


def draws_into_strided(device: torch.device) -> str | None:
    drawn = torch.zeros(64, 32, device=device).t().uniform_(1.0, 2.0)
    if (lowest := float(drawn.min())) < 1.0:
        return f"uniform_(1, 2) left {lowest:g} in a transposed tensor"
    kept = F.dropout(torch.ones(64, 32, device=device).t(), 0.5).cpu()
    others = int(((kept != 0.0) & (kept != 2.0)).sum())
    return f"dropout of a transposed tensor gave {others} numbers that are neither 0 nor 2" if others else None


def attention_to_many_keys(device: torch.device) -> str | None:
    tensors = _numbers((1, 8, 1, 128), (1, 8, 1024, 128), (1, 8, 1024, 128))
    return _attention_differs(device, tensors, torch.bfloat16)


def narrow_values(device: torch.device) -> str | None:
    return _attention_differs(device, _numbers((1, 2, 16, 32), (1, 2, 16, 32), (1, 2, 16, 24)))


def causal_attention(device: torch.device) -> str | None:
    tensors = _numbers(*3 * [(1, 4, 64, 64)])
    for dtype in (torch.float16, torch.bfloat16):
        if wrong := _attention_differs(device, tensors, dtype, is_causal=True):
            return f"in {str(dtype).removeprefix('torch.')}: {wrong}"
    return None


def shared_mask(device: torch.device) -> str | None:
    """Attends with eight queries in a batch of two, where the first row has a mask for all heads."""
    mask = torch.zeros(2, 1, 8, 8)
    mask[0, 0, 4:, :4] = float("-inf")
    return _attention_differs(device, _numbers(*3 * [(2, 4, 8, 64)]), mask=mask)


def long_attention(device: torch.device) -> str | None:
    """Attends to 4,096 tokens in bf16. What is compared has the same rounded operands, in float32."""
    rounded = [tensor.bfloat16().float() for tensor in _numbers(*3 * [(1, 1, 4096, 64)])]
    return _attention_differs(device, rounded, torch.bfloat16, tolerance=_RIGHT_OF_LONG_ATTENTION)


def dropout_in_lstm(device: torch.device) -> str | None:
    """Drops all that the first layer gives to the second, so that no gradient may reach the first."""
    lstm = nn.LSTM(4, 4, num_layers=2, dropout=1.0).to(device)
    x = torch.ones(3, 2, 4, device=device, requires_grad=True)
    lstm(x)[0].sum().backward()
    largest = float(x.grad.abs().max())  # type: ignore[union-attr]
    return None if largest == 0.0 else f"the gradient of what was dropped is {largest:g} and not 0"


def strided_kernel(device: torch.device) -> str | None:
    """Convolves with a slice of a larger weight, and computes its gradients."""
    x, weight, gradient = _numbers((2, 8, 16, 16), (3, 8, 3, 3, 3), (2, 3, 14, 14))

    def results(where: torch.device) -> list[Tensor]:
        there = x.to(where, copy=True).requires_grad_()
        y = F.conv2d(there, weight.to(where)[:, :, 1])
        y.backward(gradient.to(where))
        return [y, there.grad]  # type: ignore[list-item]

    for found, expected in zip(results(device), results(torch.device("cpu")), strict=True):
        if wrong := _differs(found, expected.detach()):
            return wrong
    return None


def strided_scatter(device: torch.device) -> str | None:
    (source,) = _numbers((2, 3))
    rows = torch.zeros(3, 2, dtype=torch.long)
    found = torch.zeros(3, 2, device=device).scatter_(0, rows.to(device)[:1], source.to(device).t())
    return _differs(found, torch.zeros(3, 2).scatter_(0, rows[:1], source.t()))


def linear_of_many(device: torch.device) -> str | None:
    """Runs nn.Linear over one batch more than 16 bits count. The last one may lie where the first should."""
    first, last, weight, bias = _numbers((17, 32), (17, 32), (64, 32), (64,))
    x = torch.zeros(MOST_BATCHES + 1, 17, 32, device=device)  # 0.4 GB with the result
    x[0], x[-1] = first.to(device), last.to(device)
    y = F.linear(x, weight.to(device), bias.to(device))
    for name, found, batch in (("first", y[0], first), ("last", y[-1], last)):
        if wrong := _differs(found, F.linear(batch, weight, bias)):
            return f"the {name} of {MOST_BATCHES + 1:,} batches {wrong}"
    return None


def large_embedding(device: torch.device) -> str | None:
    needs_memory(5, device)
    rows = MOST_SIGNED // 1024 + 2
    table = torch.zeros(rows, 1024, dtype=torch.float16, device=device)
    table[-1] = 1.0
    found = F.embedding(torch.tensor([rows - 1], device=device), table)
    return _differs(found, torch.ones(1, 1024))


def large_reduction(device: torch.device) -> str | None:
    needs_memory(5, device)
    flags = torch.zeros(MOST_UNSIGNED + 4096, dtype=torch.bool, device=device)
    flags[-1] = True
    try:
        return None if bool(flags.any()) else "any() misses the last of them"
    except RuntimeError:
        return None  # torch 2.14 and later say that they cannot


def large_cat(device: torch.device) -> str | None:
    """Joins two tensors, one of them transposed, and looks at the last row."""
    needs_memory(5, device)
    columns = math.isqrt(MOST_SIGNED) // 2
    rows = MOST_SIGNED // (2 * columns) + 1
    one = torch.ones(columns, rows, dtype=torch.int8, device=device).t()
    two = torch.full((rows, columns), 2, dtype=torch.int8, device=device)
    last = torch.cat([one, two], dim=1)[-1]
    return _differs(last, torch.tensor([1.0, 2.0]).repeat_interleave(columns))


def large_bmm(device: torch.device) -> str | None:
    """Multiplies transposed matrices, whose results have more numbers than 32 bits count, and looks at the last."""
    needs_memory(12, device)
    side = min(256, math.isqrt(MOST_UNSIGNED) // 4)
    batches = MOST_UNSIGNED // side**2 + 1
    a, b = _numbers((64, side), (64, side))
    left = torch.zeros(batches, 64, side, dtype=torch.float16, device=device)
    left[-1] = a.to(device)
    product = torch.bmm(left.transpose(1, 2), b.to(device, torch.float16).expand(batches, 64, side))
    return _differs(product[-1], a.t() @ b, _RIGHT_IN_16_BITS)


def failed_command(device: torch.device) -> str | None:
    """Never runs, because a command that fails on the GPU may disturb other programs."""
    raise CheckSkipped("needs a command that fails on the GPU")


def long_command(device: torch.device) -> str | None:
    raise CheckSkipped("needs a command that stops the display for seconds")


def norm_after_frozen(device: torch.device) -> str | None:
    """Computes the gradients of a LayerNorm whose input needs none."""
    x, factors = _numbers((8, 16, 32), (32,))

    def gradients(where: torch.device) -> list[Tensor]:
        norm = nn.LayerNorm(32).to(where)
        (norm(x.to(where)) * factors.to(where)).square().sum().backward()
        return [norm.weight.grad, norm.bias.grad]  # type: ignore[list-item]

    for found, expected in zip(gradients(device), gradients(torch.device("cpu")), strict=True):
        if wrong := _differs(found, expected):
            return wrong
    return None


def broadcast_gradients(device: torch.device) -> str | None:
    """Computes the gradient of a sum, one number broadcast, through a linear layer."""
    for shape, outputs in (((64, 16), 1), ((4, 64, 16), 1), ((4, 64, 16), 16)):
        (weight,) = _numbers((outputs, 16))
        x = torch.ones(shape, device=device, requires_grad=True)
        F.linear(x, weight.to(device)).sum().backward()
        if wrong := _differs(x.grad, weight.sum(0).expand(shape)):
            return f"of an input of {shape}: {wrong}"
    return None


def ignored_not_a_number(device: torch.device) -> str | None:
    ignored = torch.full((1, 1, 1), float("nan"), device=device)
    one = torch.ones(1, 1, 1, device=device)
    found = float(torch.baddbmm(ignored, one, one, beta=0))
    return None if found == 1.0 else f"baddbmm with beta=0 gave {found}"


def compiled_sum(device: torch.device) -> str | None:
    a, b = _numbers((32,), (64,))

    def total(a: Tensor, b: Tensor) -> Tensor:
        return (a[:, None] - b[None, :] + 1.0).sum()

    return _differs(_compiled(total, device)(a.to(device), b.to(device)), total(a, b))


def compiled_norm(device: torch.device) -> str | None:
    (x,) = _numbers((16, 768))

    def norm(x: Tensor) -> Tensor:
        return F.layer_norm(x, (768,))

    return _differs(_compiled(norm, device)(x.to(device)), norm(x))


def transposed_weight(device: torch.device) -> str | None:
    """Runs in a process of its own on a Mac, because the fault ends the process."""
    if _is_mac(device):
        return _in_a_process(transposed_weight_here)
    return transposed_weight_here(device)


def transposed_weight_here(device: torch.device) -> str | None:
    x, weight = _numbers((2, 256, 64), (64, 512))
    found = F.linear(x.to(device, torch.bfloat16), weight.to(device, torch.bfloat16).t())
    return _differs(found, F.linear(x, weight.t()), _RIGHT_IN_16_BITS)


def weight_of_one_dimension(device: torch.device) -> str | None:
    """Runs in a process of its own on a Mac, because the fault ends the process."""
    try:
        if _is_mac(device):
            return _in_a_process(weight_of_one_dimension_here)
        return weight_of_one_dimension_here(device)
    except RuntimeError as error:
        if "must be a matrix" not in str(error):
            raise
        return None  # torch 2.14 and later refuse it, which ends no process


def weight_of_one_dimension_here(device: torch.device) -> str | None:
    x, weight = _numbers((384, 33), (33,))
    there = weight.to(device, copy=True).requires_grad_()
    y = F.linear(x.to(device).requires_grad_(), there)
    if wrong := _differs(y, F.linear(x, weight)):
        return wrong
    y.sum().backward()
    return _differs(there.grad, x.sum(0))


def embedding_gradients(device: torch.device) -> str | None:
    """Computes the gradients of an embedding of 8 words, from 320 tokens, five times."""
    words = torch.arange(320).reshape(10, 32) % 8
    table, factors = _numbers((8, 16), (10, 32, 16))

    def gradient(where: torch.device) -> Tensor:
        weight = table.to(where, copy=True).requires_grad_()
        (F.embedding(words.to(where), weight) * factors.to(where)).sum().backward()
        return weight.grad.cpu()  # type: ignore[union-attr]

    expected = gradient(torch.device("cpu"))
    found = [gradient(device) for _ in range(5)]
    if wrong := _differs(found[0], expected):
        return wrong
    same = sum(torch.equal(found[0], other) for other in found)
    return None if same == len(found) else f"{len(found) - same} of {len(found)} times they differed in some bit"


def dropout_again(device: torch.device) -> str | None:
    """Drops out activations that are recomputed with the Trainer's settings."""
    x = torch.ones(64, 64, device=device, requires_grad=True)

    def layer(x: Tensor) -> Tensor:
        return F.dropout(x, 0.5).square()

    y = checkpoint(layer, x, **checkpoint_settings(None, device))
    y.sum().backward()
    others = int(((y != 0) != (x.grad != 0)).sum())
    return f"{others} of {x.numel()} elements were dropped the first or the second time only" if others else None


REPRODUCERS: dict[int, Reproducer] = {  # by issue
    177116: large_products,
    195163: large_batched_products,
    180776: linear_in_16_bits,
    192934: linear_with_bias,
    161640: linear_of_strided,
    163597: attention_of_few_queries,
    165257: draws_into_strided,
    174861: attention_to_many_keys,
    170360: compiled_sum,
    176767: narrow_values,
    183825: norm_after_frozen,
    191976: compiled_norm,
    180201: broadcast_gradients,
    187521: ignored_not_a_number,
    195910: causal_attention,
    197796: transposed_weight,
    195404: embedding_gradients,
    127676: dropout_again,
    193571: failed_command,
    190056: dropout_in_lstm,
    188756: large_embedding,
    184180: shared_mask,
    197636: large_bmm,
    194082: large_reduction,
    189960: large_cat,
    189495: linear_of_many,
    192212: strided_kernel,
    175191: strided_scatter,
    189565: weight_of_one_dimension,
    190791: long_attention,
    3267: long_command,
}


def needs_memory(gib: int, device: torch.device) -> None:
    """Raises CheckSkipped unless this is a Mac to which Metal recommends so much memory."""
    if not _is_mac(device):
        raise CheckSkipped(f"needs {gib} GiB of a Mac's GPU memory")
    recommended = torch.mps.recommended_max_memory() / GIB
    if recommended < gib:
        raise CheckSkipped(f"needs {gib} GiB of GPU memory, and Metal recommends {recommended:.1f} GiB here")


def _numbers(*shapes: tuple[int, ...]) -> list[Tensor]:
    """Returns normal numbers on the CPU, the same each time, without drawing from the global generator."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def _before_large_numbers(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns `tensor` on the device, in memory that goes on with large numbers."""
    memory = torch.full((tensor.numel() + 2**20,), 1e4, device=device)
    memory[: tensor.numel()] = tensor.reshape(-1).to(device)
    return memory[: tensor.numel()].view(tensor.shape)


def _differs(found: Tensor | None, expected: Tensor, tolerance: float = _RIGHT) -> str | None:
    """Returns how `found` differs from `expected`; None if only by rounding."""
    if found is None or found.shape != expected.shape:
        return f"its shape is {None if found is None else tuple(found.shape)}, and {tuple(expected.shape)} on the CPU"
    found = found.detach().float().cpu()
    if not found.isfinite().all():
        return f"{int((~found.isfinite()).sum())} of {found.numel()} numbers are not finite"
    largest = float((found - expected).abs().max() / expected.abs().max())
    return f"differs from the CPU by {largest:.1e} of the largest number" if largest > tolerance else None


@torch.no_grad()
def _attention_differs(
    device: torch.device,
    tensors: list[Tensor],
    dtype: torch.dtype = torch.float32,
    is_causal: bool = False,
    mask: Tensor | None = None,
    tolerance: float | None = None,
) -> str | None:
    """Returns how attention over query, key and value differs from the CPU; None if only by rounding."""
    query, key, value = tensors
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=is_causal)
    query, key, value = (tensor.to(device, dtype) for tensor in tensors)
    mask = None if mask is None else mask.to(device)
    found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=is_causal)
    return _differs(found, expected, tolerance or (_RIGHT if dtype is torch.float32 else _RIGHT_IN_16_BITS))


def _is_mac(device: torch.device) -> bool:
    return device.type == "mps" and not getattr(torch.backends.mps, "simulated", False)


def _compiled(function: Callable[..., Tensor], device: torch.device) -> Callable[..., Tensor]:
    """Returns `function` compiled for Metal on a Mac, and as it is elsewhere."""
    return torch.compile(function) if _is_mac(device) else function


def _in_a_process(function: Callable[[torch.device], Any]) -> str | None:
    """Runs `function` on mps in a child process, which it may abort, and returns its answer."""
    code = (
        "import sys, torch; from mps_trainer.selftest import reproducers; "
        f"sys.stdout.write(reproducers.{function.__name__}(torch.device('mps')) or '')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=_CHILD_SECONDS, check=False
    )
    if done.returncode < 0:
        return f"the process ended with signal {-done.returncode}"
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"status {done.returncode}")
    return done.stdout or None
