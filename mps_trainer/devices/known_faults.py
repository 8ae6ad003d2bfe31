"""Releases of torch and macOS that are known to compute wrong results on mps where training meets them.

Data, and a pure look-up in it. A bound is where the issue says that the fault was seen first, or found mended. Before
torch 2.6, the oldest that this package takes, there are more: 118115, the lost steps of an optimizer, is one.
"""

from __future__ import annotations

from dataclasses import dataclass

from .facts import parse_version

Version = tuple[int, int]


@dataclass(frozen=True)
class KnownFault:
    """One fault: versions from the first bound on, and before the second; None is no bound.

    `what` is a clause that says what comes out wrong, `remedy` what to do, and `issue` its number at pytorch.
    """

    issue: int
    what: str
    remedy: str
    torch_from: Version | None = None
    torch_before: Version | None = None
    macos_from: Version | None = None
    macos_before: Version | None = None

    def concerns(self, torch_version: tuple[int, ...], macos_version: tuple[int, ...]) -> bool:
        return _within(torch_version, self.torch_from, self.torch_before) and _within(
            macos_version, self.macos_from, self.macos_before
        )

    def __str__(self) -> str:
        return f"{self.what} (pytorch issue {self.issue}): {self.remedy}"


KNOWN_FAULTS = (
    KnownFault(
        161640,
        "nn.Linear gives wrong results for weights or inputs that are not contiguous",
        "install torch 2.9 or later",
        torch_from=(2, 8),
        torch_before=(2, 9),
    ),
    KnownFault(
        163597,
        "attention over at most 8 queries gives wrong results in evaluations",
        "install torch 2.9 or later, or load the model with attn_implementation='eager'",
        torch_from=(2, 8),
        torch_before=(2, 9),
    ),
    KnownFault(
        165257,
        "dropout and random numbers go astray for tensors that are not contiguous",
        "update macOS to 15 or later, or install torch 2.10 or later",
        torch_before=(2, 10),
        macos_before=(15, 0),
    ),
    KnownFault(
        174861,
        "attention of one query to 1024 keys or more in fp16 or bf16 gives wrong results in generation",
        "install torch 2.11 or later, or load the model with attn_implementation='eager'",
        torch_from=(2, 8),
        torch_before=(2, 11),
    ),
    KnownFault(
        183825,  # mended by pull request 183893, when 2.13 was what main was to become
        "the gradients of a LayerNorm are wrong where what comes before it is frozen, as with frozen embeddings",
        "install torch 2.13 or later, or freeze that LayerNorm as well",
        torch_before=(2, 13),
    ),
    KnownFault(
        177116,
        "gradients of batches with more than 32,768 tokens may be wrong by orders of magnitude",
        "keep batch size times length below that, with gradient_accumulation_steps to make up for it",
        torch_from=(2, 10),
        torch_before=(2, 12),
        macos_from=(26, 0),
    ),
    KnownFault(
        180201,
        "gradients that are broadcast, as those of a sum, may come out as zeros",
        "update macOS to 26.4 or later",
        macos_from=(26, 2),
        macos_before=(26, 4),
    ),
    KnownFault(
        191976,
        "a compiled LayerNorm gives wrong results",
        "install torch 2.13 or later, or leave torch_compile out",
        torch_before=(2, 13),
    ),
)


def known_faults(torch_version: str | None, macos_version: str | None) -> tuple[KnownFault, ...]:
    """Those of `KNOWN_FAULTS` that this torch has on this macOS; none where a version is not known."""
    torch, macos = parse_version(torch_version), parse_version(macos_version)
    if not torch or not macos:
        return ()
    return tuple(fault for fault in KNOWN_FAULTS if fault.concerns(torch, macos))


def _within(version: tuple[int, ...], first: Version | None, before: Version | None) -> bool:
    return (first is None or version >= first) and (before is None or version < before)
