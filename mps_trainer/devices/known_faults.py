"""Lists faults of torch, macOS and chips in training on mps: wrong results, and what ends a run.

Data, and a pure look-up in it. A bound is the first release in which the fault was seen, or the first known to be free
of it; where an issue does not say, the bound is left open. `tools/selftest/reproducers.py` has a reproducer of each.
Before torch 2.6, the oldest that this package takes, there are more: 118115, the lost steps of an optimizer, is one.

Those that a model of transformers or a layer of torch.nn meets in an ordinary run cause a warning. The others do not:
they need a tensor of 4 GB and more, an operation that such models do not have, or the Trainer avoids them.
"""

from __future__ import annotations

from dataclasses import dataclass

from .facts import parse_version

Version = tuple[int, ...]
_NEVER = (1_000_000,)

SILENT = 193571  # the fault by which others are not seen
# Apple's GPU families 7 and 8.
M1_AND_M2 = ("M1", "M2")


@dataclass(frozen=True)
class KnownFault:
    """One fault: versions from the first bound on, and before the second; None is no bound.

    Args:
        issue: the number of an issue or pull request in `repository`.
        what: a clause that says what comes out wrong.
        remedy: a clause that says what to do.
        chips: "M1" is every M1, "M1 (Virtual)" only that one; () is any chip.
        also: other issues and pull requests in `repository` about the same fault.
        warns: False where no warning is needed.
        repository: where the issue is, at GitHub.
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
    repository: str = "pytorch/pytorch"

    @property
    def thread(self) -> str:
        """Returns the issue by name, such as "pytorch issue 177116"."""
        return f"{self.repository.partition('/')[2]} issue {self.issue}"

    def concerns(self, torch_version: tuple[int, ...], macos_version: tuple[int, ...], chip: str | None) -> bool:
        return (
            (self.torch_from or ()) <= torch_version < (self.torch_before or _NEVER)
            and (self.macos_from or ()) <= macos_version < (self.macos_before or _NEVER)
            and (not self.chips or is_chip(chip, self.chips))
        )

    def __str__(self) -> str:
        return f"{self.what} ({self.thread}): {self.remedy}"


KNOWN_FAULTS = (
    KnownFault(
        177116,
        "on M1 and M2, matrix products that sum 32,767 numbers or more are wrong: gradients of batches with as many "
        "tokens, and of language models with a vocabulary as large",
        "install torch 2.14 or later; until then keep batch size times length below 32,767 (the Trainer splits the "
        "products of a language model's head, if that is a plain linear layer)",
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
        "on M1 with macOS 26, nn.Linear with bias gives wrong results for inputs of 3 dimensions",
        "install torch 2.14.1 or later",
        torch_before=(2, 14, 1),  # virtual ones failed with a nightly of August, which has 188619 and 189496
        macos_from=(26, 0),
        macos_before=(27, 0),
        chips=("M1",),
        also=(188438, 188619),
    ),
    KnownFault(
        SILENT,
        "a command that fails on the GPU, because memory runs out or macOS stops it, ends without an error, and "
        "training goes on with wrong numbers",
        "install torch 2.15 or later, which raises an error",
        torch_before=(2, 15),
    ),
    KnownFault(
        190056,
        "the gradients of an LSTM with dropout between its layers are those without dropout",
        "install torch 2.14 or later, or set the dropout of the LSTM to 0",
        torch_before=(2, 14),
        also=(190059,),
    ),
    KnownFault(
        188756,
        "an embedding of more than 2,147,483,648 numbers, such as that per layer in Gemma 3n E4B, gives zeros",
        "install torch 2.14 or later",
        torch_before=(2, 14),
    ),
    KnownFault(
        184180,
        "attention over at most 8 queries gives wrong results in evaluations and generation, for batches with a mask "
        "that the heads share",
        "install torch 2.13 or later, or load the model with attn_implementation='eager'",
        torch_from=(2, 8),  # the kernel for few queries came with it (152781)
        torch_before=(2, 13),
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
        "dropout and random fills give wrong values for tensors that are not contiguous",
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
        "attention whose value heads are narrower than its key heads gives a result of the wrong shape",
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
        "broadcast gradients, such as a sum's, may come out as zeros",
        "update macOS to 26.4 or later, or install torch 2.13 or later",
        torch_before=(2, 13),  # mended in April 2026, before 2.13 and perhaps before 2.12
        macos_from=(15, 0),
        macos_before=(26, 4),
        also=(180236,),
    ),
    KnownFault(
        180201,  # back in a beta of July; the check of pull request 180236 leaves macOS 26.4 and later out
        "in a beta of macOS 27, broadcast gradients, such as a sum's, came out as zeros",
        "end the loss with a mean and not with a sum, and see whether `mps-trainer selftest` finds it on your Mac",
        macos_from=(27, 0),
    ),
    KnownFault(
        187521,
        "baddbmm with beta=0 propagates NaNs from the input that it should ignore",
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
    KnownFault(
        197636,  # seen in 2.4.1 to 2.14.0, and open
        "batched matrix products are wrong where the result has more than 4,294,967,296 numbers and an operand is not "
        "contiguous, or an operand has more: gradients of eager attention in 32 heads to 4,096 tokens in batches of 9",
        "use smaller batches, or load the model with attn_implementation='sdpa'",
        warns=False,
    ),
    KnownFault(
        194082,
        "argmax, argmin, any and all of more than 4,294,967,296 numbers are wrong",
        "install torch 2.14 or later, which raises an error",
        torch_before=(2, 14),
        warns=False,
    ),
    KnownFault(
        189960,  # closed; 2.15.0.dev20260915 has it for operands that are not contiguous or of several formats
        "torch.cat of more than 2,147,483,648 numbers leaves some out and overwrites other tensors",
        "join smaller tensors",
        also=(189965,),
        warns=False,
    ),
    KnownFault(
        189495,
        "nn.Linear with bias gives wrong results where the dimension before the last two has more than 65,536 entries",
        "install torch 2.14 or later, or make the input 2-D",
        torch_from=(2, 12),
        torch_before=(2, 14),
        also=(189496,),
        warns=False,
    ),
    KnownFault(
        192212,
        "conv2d reads a weight that is not contiguous as if it were",
        "nothing: the Trainer makes parameters contiguous; make a slice of a weight contiguous, or install torch 2.14 "
        "or later",
        torch_before=(2, 14),
        macos_from=(15, 0),
        also=(192303,),
        warns=False,
    ),
    KnownFault(
        175191,
        "scatter_ reads a source or an index that is not contiguous as if it were",
        "install torch 2.13 or later, or make both contiguous",
        torch_from=(2, 10),
        torch_before=(2, 13),
        warns=False,
    ),
    KnownFault(
        189565,
        "the gradients of torch.nn.functional.linear with a weight of 1 dimension end the process",
        "install torch 2.14 or later, which raises an error, or give the weight 2 dimensions",
        torch_from=(2, 10),
        torch_before=(2, 14),
        also=(187988, 187989),
        warns=False,
    ),
    KnownFault(
        190791,  # an open pull request; 2.4 % at 14,000 tokens
        "attention over more than 3,000 tokens in fp16 or bf16 loses precision in evaluations and generation",
        "evaluate in float32, or load the model with attn_implementation='eager'",
        warns=False,
    ),
    KnownFault(
        3267,  # torch meets it too: pytorch pull request 193571
        "macOS stops a command that keeps the GPU busy for long while the display is on",
        "let the display sleep (pmset displaysleepnow), or use smaller batches",
        warns=False,
        repository="ml-explore/mlx",
    ),
)


def known_faults(
    torch_version: str | None, macos_version: str | None, chip: str | None = None
) -> tuple[KnownFault, ...]:
    """Returns the `KNOWN_FAULTS` that this machine has; none where a version is not known.

    Args:
        chip: such as "Apple M2 Pro"; None: not known, and faults of certain chips are left out.
    """
    torch, macos = parse_version(torch_version, 3), parse_version(macos_version)
    if not torch or not macos:
        return ()
    return tuple(fault for fault in KNOWN_FAULTS if fault.concerns(torch, macos, chip))


def faults_to_warn_of(
    torch_version: str | None, macos_version: str | None, chip: str | None = None
) -> tuple[KnownFault, ...]:
    """Returns the known faults that an ordinary run may meet."""
    return tuple(fault for fault in known_faults(torch_version, macos_version, chip) if fault.warns)


def is_chip(chip: str | None, names: tuple[str, ...]) -> bool:
    """Returns True if `chip`, such as "Apple M2 Pro", is one of `names`, such as "M2"."""
    return any(f"{chip} ".startswith(f"Apple {name} ") for name in names)
