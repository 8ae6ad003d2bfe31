"""The model: number formats, activation checkpointing and preparation."""

from __future__ import annotations

from dataclasses import dataclass

from .fields import option
from .readers import read_integer_not_float

LAUNCHED = "ACCELERATE_MIXED_PRECISION"
PRECISIONS = ("no", "fp16", "bf16")  # the settings of autocast


@dataclass
class PrecisionArguments:
    """Number formats and activation checkpointing."""

    bf16: bool = option(False, "Autocast to bfloat16 (cpu, mps from macOS 14, cuda from Ampere).")
    fp16: bool = option(False, "Autocast to float16 with a gradient scaler.")
    # Both flags end up as true or false, and equal. They begin as None so that a copy of the arguments in which
    # activation_checkpointing is switched off differs from one that leaves it alone.
    activation_checkpointing: bool = option(
        None, "Recompute activations in the backward pass instead of storing them: less memory, more time."
    )
    activation_checkpointing_kwargs: dict | str | None = option(
        None, "Settings for torch.utils.checkpoint, as JSON. Default: use_reentrant false."
    )
    gradient_checkpointing: bool = option(None, "transformers' name of activation_checkpointing.")
    gradient_checkpointing_kwargs: dict | str | None = option(
        None, "transformers' name of activation_checkpointing_kwargs."
    )
    bf16_full_eval: bool = option(False, "Evaluate with weights in bfloat16 instead of autocast.")
    fp16_full_eval: bool = option(False, "Evaluate with weights in float16 instead of autocast.")
    tf32: bool | None = option(None, "Use TensorFloat-32 on cuda from Ampere on. [torch's setting]")


@dataclass
class ModelArguments:
    """Preparation of the model."""

    use_cache: bool = option(False, "Value of model.config.use_cache.")
    torch_compile: bool = option(False, "Compile the model with torch.compile.")
    torch_compile_backend: str | None = option(
        None, "Backend of torch.compile; setting it enables torch_compile. [inductor]"
    )
    torch_compile_mode: str | None = option(None, "Mode of torch.compile; setting it enables torch_compile.")
    use_liger_kernel: bool = option(False, "Use the kernels of the package liger-kernel.")
    liger_kernel_config: dict | str | None = option(
        None, "Selection of liger-kernel's kernels, as JSON. [their defaults]"
    )
    chunked_cross_entropy: bool = option(
        True, "Compute the loss of a language model in chunks of logits, unless the logits are needed.", kw_only=True
    )
    chunked_attention: bool | None = option(
        None,
        "Compute attention in blocks, in memory that grows with the length of a text instead of its square; true: "
        "always, false: never. [on mps, for texts of 1,024 tokens or more]",
        kw_only=True,
    )
    skip_unread_tokens: bool = option(
        False,
        "Compute the last layer of classifiers such as BERT for the first token alone, with other draws of dropout.",
        kw_only=True,
    )
    torch_empty_cache_steps: int | None = option(
        None,
        "Release the device's unused memory every this many steps; slower. [never]",
        ge=1,
        read=read_integer_not_float,
    )
