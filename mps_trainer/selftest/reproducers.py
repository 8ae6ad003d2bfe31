"""Reproduces each of the known faults: a small computation on a device, compared with the CPU.

Each takes a device and returns a clause that says what came out wrong, or None. None takes more than a few seconds or
more than 100 MB. They follow what the issues describe; on a Mac none of them has run yet.
"""

from __future__ import annotations

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

Reproducer = Callable[[torch.device], str | None]

_RIGHT = 1e-3  # relative to the largest number; what is wrong differs by 1e-1 and more
_RIGHT_IN_16_BITS = 5e-2
_CHILD_SECONDS = 60


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
}


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
) -> str | None:
    """Returns how attention over query, key and value differs from the CPU; None if only by rounding."""
    query, key, value = tensors
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
    query, key, value = (tensor.to(device, dtype) for tensor in tensors)
    found = F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
    return _differs(found, expected, _RIGHT if dtype is torch.float32 else _RIGHT_IN_16_BITS)


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
