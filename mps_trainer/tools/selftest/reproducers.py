"""Reproduces each of the known faults: a small computation on a device, compared with the CPU.

Each takes a device and returns a clause that says what came out wrong, or None. None takes more than a few seconds,
and all but one take less than 100 MB. Those that need gigabytes run on Macs to which Metal recommends so much, and
raise CheckSkipped elsewhere. They follow what the issues describe; on a Mac none of them has run yet.
"""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ...devices.facts import parse_version
from ...devices.large_products import INNER, MENDED_IN_2D
from ...model.activation_checkpointing import checkpoint_settings
from .results import CheckSkipped

Reproducer = Callable[[torch.device], str | None]
Results = Tensor | list[tuple[str, Tensor]]  # one, or several with their names

_RIGHT = 1e-3  # relative to the largest number; what is wrong differs by 1e-1 and more
_RIGHT_IN_16_BITS = 5e-2
_RIGHT_OF_LONG_ATTENTION = 1e-2  # a right one is off by 3e-3, the result's own rounding; the fault by 2.4e-2
_CHILD_SECONDS = 60

GIB = 2**30
MOST_BATCHES = 2**16  # 16 bits count so many
MOST_SIGNED, MOST_UNSIGNED = 2**31, 2**32  # 32 bits count so many elements


def compared(
    compute: Callable[..., Results],
    *shapes: tuple[int, ...],
    dtypes: tuple[torch.dtype, ...] = (torch.float32,),
    tolerance: float | None = None,
    is_compiled: bool = False,
) -> Reproducer:
    """Returns a reproducer that runs `compute` on the device and compares its results with the CPU's.

    Args:
        compute: takes random numbers in these shapes.
        dtypes: the number formats on the device. The CPU has the numbers of that format, and computes in float32.
        is_compiled: compiles `compute` for Metal on a Mac.
    """

    def reproduce(device: torch.device) -> str | None:
        on_device = torch.compile(compute) if is_compiled and _is_mac(device) else compute
        for dtype in dtypes:
            given = [numbers.to(dtype) for numbers in _numbers(*shapes)]
            expected = _named(compute(*(numbers.to(torch.float32, copy=True) for numbers in given)))
            found = _named(on_device(*(numbers.to(device, copy=True) for numbers in given)))
            right = tolerance or (_RIGHT if dtype is torch.float32 else _RIGHT_IN_16_BITS)
            for (name, result), (_, of_cpu) in zip(found, expected, strict=True):
                if wrong := _differs(result, of_cpu.detach(), right):
                    wrong = f"{name} {wrong}" if name else wrong
                    return f"in {str(dtype).removeprefix('torch.')}: {wrong}" if len(dtypes) > 1 else wrong
        return None

    return reproduce


def _named(results: Results) -> list[tuple[str, Tensor]]:
    return [("", results)] if isinstance(results, Tensor) else results


def skipped(reason: str) -> Reproducer:
    """Returns a reproducer that never runs."""

    def reproduce(device: torch.device) -> str | None:
        raise CheckSkipped(reason)

    return reproduce


def in_a_process(issue: int) -> Reproducer:
    """Returns a reproducer for a fault that may end the process: on a Mac it runs in a child process."""

    def reproduce(device: torch.device) -> str | None:
        if not _is_mac(device):
            return ENDING_PROCESSES[issue](device)
        code = (
            "import sys, torch; from mps_trainer.tools.selftest import reproducers; "
            f"sys.stdout.write(reproducers.ENDING_PROCESSES[{issue}](torch.device('mps')) or '')"
        )
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_CHILD_SECONDS, check=False)
        if done.returncode < 0:
            return f"the process ended with signal {-done.returncode}"
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            raise RuntimeError(lines[-1] if lines else f"status {done.returncode}")
        return done.stdout or None

    return reproduce


def large_products(device: torch.device) -> str | None:
    """Sums 32,767 numbers and more, with other numbers right behind the operands, which must not count."""
    # From torch 2.14 on, the fault is left in sums of exactly 32,767 and 32,768 numbers, which are not tested then.
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


def linear_and_gradient(weight: Tensor, x: Tensor, gradient: Tensor) -> Results:
    """Runs nn.Linear without bias over 3 dimensions, forward and backward, several times."""
    results: list[tuple[str, Tensor]] = []
    for _ in range(3):
        there = x.detach().requires_grad_()
        y = F.linear(there, weight / 32)
        results += [("the output", y), ("the gradient", torch.autograd.grad(y, there, gradient)[0])]
    return results


def draws_into_strided(device: torch.device) -> str | None:
    drawn = torch.zeros(64, 32, device=device).t().uniform_(1.0, 2.0)
    if (lowest := float(drawn.min())) < 1.0:
        return f"uniform_(1, 2) left {lowest:g} in a transposed tensor"
    kept = F.dropout(torch.ones(64, 32, device=device).t(), 0.5).cpu()
    others = int(((kept != 0.0) & (kept != 2.0)).sum())
    return f"dropout of a transposed tensor gave {others} numbers that are neither 0 nor 2" if others else None


attention = F.scaled_dot_product_attention


def attention_of_transposed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attends with eight queries whose heads and length are swapped, as in BERT."""
    return attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))


def attention_with_shared_mask(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attends with eight queries in a batch of two, where the first row has a mask for all heads."""
    mask = torch.zeros(2, 1, 8, 8)
    mask[0, 0, 4:, :4] = float("-inf")
    return attention(query, key, value, attn_mask=mask.to(query.device))


def dropout_in_lstm(device: torch.device) -> str | None:
    """Drops all that the first layer gives to the second, so that no gradient may reach the first."""
    lstm = nn.LSTM(4, 4, num_layers=2, dropout=1.0).to(device)
    x = torch.ones(3, 2, 4, device=device, requires_grad=True)
    lstm(x)[0].sum().backward()
    largest = float(x.grad.abs().max())  # type: ignore[union-attr]
    return None if largest == 0.0 else f"the gradient of what was dropped is {largest:g} and not 0"


def strided_kernel(x: Tensor, weight: Tensor, gradient: Tensor) -> Results:
    """Convolves with a slice of a larger weight, and computes its gradients."""
    y = F.conv2d(x.requires_grad_(), weight[:, :, 1])
    return [("the output", y), ("the gradient", torch.autograd.grad(y, x, gradient)[0])]


def strided_scatter(source: Tensor) -> Tensor:
    rows = torch.zeros(3, 2, dtype=torch.long, device=source.device)
    return torch.zeros(3, 2, device=source.device).scatter_(0, rows[:1], source.t())


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


def regions_of_images(device: torch.device) -> str | None:
    """Computes the gradients of torchvision's roi_align for 512 regions, among which its kernel spread wrong sums."""
    try:
        ops = importlib.import_module("torchvision.ops")
    except ImportError:
        raise CheckSkipped("needs torchvision") from None
    if device.type == "mps" and not _is_mac(device):
        raise CheckSkipped("needs torchvision's kernel for mps")

    def gradients(image: Tensor, corners: Tensor) -> Results:
        starts = corners.abs().clamp(max=3) * 4
        boxes = torch.cat([starts, starts + 8], 1)
        leaf = image.requires_grad_()
        return [("the gradient", torch.autograd.grad(ops.roi_align(leaf, [boxes], 7).sum(), leaf)[0])]

    return compared(gradients, (1, 8, 32, 32), (512, 2))(device)


def norm_after_frozen(x: Tensor, factors: Tensor) -> Results:
    """Computes the gradients of a LayerNorm whose input needs none."""
    norm = nn.LayerNorm(32).to(x.device)
    gradients = torch.autograd.grad((norm(x) * factors).square().sum(), [norm.weight, norm.bias])
    return list(zip(("the gradient of the weight", "the gradient of the bias"), gradients, strict=True))


def broadcast_gradients(*weights: Tensor) -> Results:
    """Computes the gradient of a sum, one number broadcast, through a linear layer."""
    results = []
    for weight, shape in zip(weights, ((64, 16), (4, 64, 16), (4, 64, 16)), strict=True):
        x = torch.ones(shape, device=weight.device, requires_grad=True)
        gradient = torch.autograd.grad(F.linear(x, weight).sum(), x)[0]
        results.append((f"the gradient of an input of {shape}", gradient))
    return results


def ignored_not_a_number(one: Tensor) -> Results:
    return [("baddbmm with beta=0", torch.baddbmm(torch.full_like(one, float("nan")), one, one, beta=0))]


def weight_of_one_dimension(device: torch.device) -> str | None:
    x, weight = _numbers((384, 33), (33,))
    there = weight.to(device, copy=True).requires_grad_()
    try:
        y = F.linear(x.to(device, copy=True).requires_grad_(), there)
        if wrong := _differs(y, F.linear(x, weight)):
            return wrong
        y.sum().backward()
    except RuntimeError as error:
        if "must be a matrix" not in str(error):
            raise
        return None  # torch 2.14 and later refuse it, which ends no process
    return _differs(there.grad, x.sum(0))  # type: ignore[arg-type]


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
    y = checkpoint(lambda x: F.dropout(x, 0.5).square(), x, **checkpoint_settings(None, device))
    y.sum().backward()
    others = int(((y != 0) != (x.grad != 0)).sum())
    return f"{others} of {x.numel()} elements were dropped the first or the second time only" if others else None


_BFLOAT16 = (torch.bfloat16,)
ENDING_PROCESSES: dict[int, Reproducer] = {
    197796: compared(lambda x, weight: F.linear(x, weight.t()), (2, 256, 64), (64, 512), dtypes=_BFLOAT16),
    189565: weight_of_one_dimension,
}
REPRODUCERS: dict[int, Reproducer] = {  # by issue
    177116: large_products,
    195163: large_batched_products,
    180776: compared(linear_and_gradient, (1024, 1024), *2 * [(2, 13, 1024)], dtypes=_BFLOAT16),
    192934: compared(F.linear, (2, 64, 128), (384, 128), (384,)),
    161640: compared(lambda x, weight: F.linear(x.t(), weight.t()), (48, 32), (48, 64)),
    163597: compared(attention_of_transposed, *3 * [(2, 8, 4, 64)]),
    165257: draws_into_strided,
    174861: compared(attention, (1, 8, 1, 128), *2 * [(1, 8, 1024, 128)], dtypes=_BFLOAT16),
    170360: compared(lambda a, b: (a[:, None] - b[None, :] + 1.0).sum(), (32,), (64,), is_compiled=True),
    176767: compared(attention, (1, 2, 16, 32), (1, 2, 16, 32), (1, 2, 16, 24)),
    183825: compared(norm_after_frozen, (8, 16, 32), (32,)),
    191976: compared(lambda x: F.layer_norm(x, (768,)), (16, 768), is_compiled=True),
    180201: compared(broadcast_gradients, (1, 16), (1, 16), (16, 16)),
    187521: compared(ignored_not_a_number, (1, 1, 1)),
    195910: compared(
        partial(attention, is_causal=True), *3 * [(1, 4, 64, 64)], dtypes=(torch.float16, torch.bfloat16)
    ),
    197796: in_a_process(197796),
    195404: embedding_gradients,
    127676: dropout_again,
    193571: skipped("needs a command that fails on the GPU"),  # running it may disturb other programs
    190056: dropout_in_lstm,
    188756: large_embedding,
    184180: compared(attention_with_shared_mask, *3 * [(2, 4, 8, 64)]),
    197636: large_bmm,
    194082: large_reduction,
    189960: large_cat,
    189495: linear_of_many,
    192212: compared(strided_kernel, (2, 8, 16, 16), (3, 8, 3, 3, 3), (2, 3, 14, 14)),
    175191: compared(strided_scatter, (2, 3)),
    189565: in_a_process(189565),
    190791: compared(attention, *3 * [(1, 1, 4096, 64)], dtypes=_BFLOAT16, tolerance=_RIGHT_OF_LONG_ATTENTION),
    9510: regions_of_images,
    197805: skipped("needs two threads at once, which may stop the process for good"),
    3267: skipped("needs a command that stops the display for seconds"),
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


def _differs(found: Tensor, expected: Tensor, tolerance: float = _RIGHT) -> str | None:
    """Returns how `found` differs from `expected`; None if only by rounding."""
    if found.shape != expected.shape:
        return f"has the shape {tuple(found.shape)}, and {tuple(expected.shape)} on the CPU"
    found = found.detach().float().cpu()
    if not found.isfinite().all():
        return f"{int((~found.isfinite()).sum())} of {found.numel()} numbers are not finite"
    largest = float((found - expected).abs().max() / expected.abs().max())
    return f"differs from the CPU by {largest:.1e} of the largest number" if largest > tolerance else None


def _is_mac(device: torch.device) -> bool:
    return device.type == "mps" and not getattr(torch.backends.mps, "simulated", False)
