"""Lists faults of torch, macOS and chips in training on mps: wrong results, and one abort.

Data, and a pure look-up in it. A bound is the first release in which the fault was seen, or the first known to be free
of it; where an issue does not say, the bound is left open. `selftest/reproducers.py` has a reproducer of each. Before
torch 2.6, the oldest that this package takes, there are more: 118115, the lost steps of an optimizer, is one.
"""

from __future__ import annotations

from dataclasses import dataclass

from .facts import parse_version

Version = tuple[int, int]

# Apple's GPU families 7 and 8.
M1_AND_M2 = ("M1", "M2")


@dataclass(frozen=True)
class KnownFault:
    """One fault: versions from the first bound on, and before the second; None is no bound.

    Args:
        issue: its number at pytorch.
        what: a clause that says what comes out wrong.
        remedy: a clause that says what to do.
        chips: "M1" is every M1, "M1 (Virtual)" only that one; () is any chip.
        also: other issues and pull requests at pytorch about the same fault.
        warns: False where no warning is needed, because the Trainer avoids the fault or results stay right.
    """

    issue: int
    what: str
    remedy: str
    torch_from: Version | None = None
    torch_before: Version | None = None
    macos_from: Version | None = None
    macos_before: Version | None = None
    chips: tuple[str, ...] = ()
    also: tuple[int, ...] = ()
    warns: bool = True

    def concerns(self, torch_version: tuple[int, ...], macos_version: tuple[int, ...], chip: str | None) -> bool:
        return (
            _within(torch_version, self.torch_from, self.torch_before)
            and _within(macos_version, self.macos_from, self.macos_before)
            and (not self.chips or is_chip(chip, self.chips))
        )

    @property
    def can_be_updated_away(self) -> bool:
        """Returns True if a newer torch or macOS is known to be free of it."""
        return self.torch_before is not None or self.macos_before is not None

    def __str__(self) -> str:
        return f"{self.what} (pytorch issue {self.issue}): {self.remedy}"


KNOWN_FAULTS = (
    KnownFault(
        177116,
        "on M1 and M2, matrix products that sum 32,767 numbers or more are wrong: gradients of batches with as many "
        "tokens, and of language models with a vocabulary as large",
        "install torch 2.14 or later; until then keep batch size times length below 32,767, and train language "
        "models with such a vocabulary on the CPU",
        torch_before=(2, 14),
        chips=M1_AND_M2,
        also=(183535, 193487),  # the pull request that mends it; the same fault, met with transposed operands
    ),
    KnownFault(
        195163,
        "on M1 and M2, batched matrix products (bmm, einsum, matmul in 3-D) that sum 32,767 numbers or more are wrong",
        "keep sequences shorter than that, or make it one 2-D product where torch is 2.14 or later",
        chips=M1_AND_M2,
        also=(195012,),
    ),
    KnownFault(
        180776,
        "on M5, nn.Linear without bias in fp16 or bf16 gives another result each time for inputs of 3 dimensions",
        "install torch 2.14 or later, or train in float32",
        torch_before=(2, 14),  # 2.13 has the forward pass mended; whether it has the backward pass is not known
        chips=("M5",),
        also=(181466, 181936, 182350),
    ),
    KnownFault(
        192934,
        "on a virtual M1, nn.Linear with bias gives wrong results for inputs of 3 dimensions",
        "install torch 2.14 or later, or train on a real Mac",
        torch_before=(2, 14),
        chips=("M1 (Virtual)",),
        also=(188438, 189855),
    ),
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
        170360,
        "a compiled sum over broadcast tensors may be twice the right one",
        "install torch 2.11 or later, or leave torch_compile out",
        torch_before=(2, 11),
        also=(171479,),
    ),
    KnownFault(
        176767,
        "attention whose value heads are narrower than its key heads gives wrong results",
        "install torch 2.12 or later, or load the model with attn_implementation='eager'",
        torch_before=(2, 12),
        also=(176843,),
    ),
    KnownFault(
        183825,  # mended by pull request 183893, when 2.13 was what main was to become
        "the gradients of a LayerNorm are wrong where what comes before it is frozen, as with frozen embeddings",
        "install torch 2.13 or later, or freeze that LayerNorm as well",
        torch_before=(2, 13),
    ),
    KnownFault(
        191976,
        "a compiled LayerNorm gives wrong results",
        "install torch 2.13 or later, or leave torch_compile out",
        torch_before=(2, 13),
    ),
    KnownFault(
        180201,
        "gradients that are broadcast, as those of a sum, may come out as zeros",
        "update macOS to 26.4 or later, or install torch 2.13 or later",
        torch_before=(2, 13),  # mended in April 2026, before 2.13 and perhaps before 2.12
        macos_from=(15, 0),
        macos_before=(26, 4),
        also=(180236,),
    ),
    KnownFault(
        180201,  # back in a beta; the check of pull request 180236 leaves macOS 26.4 and later out
        "on macOS 27, gradients that are broadcast, as those of a sum, may come out as zeros",
        "end the loss with a mean and not with a sum, and see whether `mps-trainer selftest` finds it on your Mac",
        macos_from=(27, 0),
    ),
    KnownFault(
        187521,
        "baddbmm with beta=0 passes on what is not a number in the tensor that it should ignore",
        "install torch 2.14 or later, or give it a tensor of zeros",
        torch_before=(2, 14),
        also=(187522, 194442),
    ),
    KnownFault(
        195910,
        "causal attention in fp16 or bf16 lets tokens see later ones in evaluations and generation",
        "install torch 2.14 or later, or load the model with attn_implementation='eager'",
        torch_before=(2, 14),  # seen in 2.10, gone in 2.14
    ),
    KnownFault(
        197796,
        "on macOS 27, nn.Linear in bf16 with a transposed weight ends the process",
        "install torch 2.14 or later, or make the weight contiguous",
        torch_before=(2, 14),
        macos_from=(27, 0),
    ),
    KnownFault(
        195404,
        "the gradients of an embedding differ in their last bits from run to run",
        "nothing, unless two runs have to agree in every bit: such runs need the CPU",
        also=(195754,),
        warns=False,
    ),
    KnownFault(
        127676,
        "activations that are computed again drop out other elements than the first time",
        "nothing: the Trainer restores the random numbers itself",
        also=(194478,),
        warns=False,
    ),
)


def known_faults(
    torch_version: str | None, macos_version: str | None, chip: str | None = None
) -> tuple[KnownFault, ...]:
    """Returns the `KNOWN_FAULTS` to warn of on this machine; none where a version is not known.

    Args:
        chip: such as "Apple M2 Pro"; None: not known, and faults of certain chips are left out.
    """
    torch, macos = parse_version(torch_version), parse_version(macos_version)
    if not torch or not macos:
        return ()
    return tuple(fault for fault in KNOWN_FAULTS if fault.warns and fault.concerns(torch, macos, chip))


def is_chip(chip: str | None, names: tuple[str, ...]) -> bool:
    """Returns True if `chip`, such as "Apple M2 Pro", is one of `names`, such as "M2"."""
    return any(f"{chip} ".startswith(f"Apple {name} ") for name in names)


def _within(version: tuple[int, ...], first: Version | None, before: Version | None) -> bool:
    return (first is None or version >= first) and (before is None or version < before)
