"""Preparation of the model."""

from __future__ import annotations

from dataclasses import dataclass

from .fields import option


@dataclass
class ModelArguments:
    use_cache: bool = option(False, "Value of model.config.use_cache.")
    torch_compile: bool = option(False, "Compile the model with torch.compile.")
    torch_compile_backend: str | None = option(
        None, "Backend of torch.compile; setting it enables torch_compile. [inductor]"
    )
    torch_compile_mode: str | None = option(None, "Mode of torch.compile; setting it enables torch_compile.")
    use_liger_kernel: bool = option(False, "Use the kernels of the package liger-kernel.")
    liger_kernel_config: dict[str, bool] | None = option(
        None, "Selection of liger-kernel's kernels, as JSON. [their defaults]"
    )
    chunked_cross_entropy: bool = option(
        True, "Compute the loss of a language model in chunks of logits, unless the logits are needed.", kw_only=True
    )
    fast_dropout: bool = option(
        False,
        "On the CPU, draw the random numbers of dropout for four elements at once; results differ from torch's "
        "dropout.",
        kw_only=True,
    )
    skip_unread_tokens: bool = option(
        False,
        "Compute the last layer of classifiers such as BERT for the first token alone, with other draws of dropout.",
        kw_only=True,
    )
    torch_empty_cache_steps: int | None = option(
        None, "Release the device's unused memory every this many steps; slower. [never]", ge=1
    )
