"""Holds the arguments for what is done to the model before it trains."""

from __future__ import annotations

from dataclasses import dataclass

from .fields import option


@dataclass
class ModelArguments:
    use_cache: bool = option(False, "What model.config.use_cache is set to.")
    torch_compile: bool = option(False, "Compile the model with torch.compile.")
    torch_compile_backend: str | None = option(None, "Backend of torch.compile; naming one switches it on. [inductor]")
    torch_compile_mode: str | None = option(None, "Mode of torch.compile; naming one switches it on.")
    use_liger_kernel: bool = option(False, "Use the kernels of the package liger-kernel.")
    liger_kernel_config: dict[str, bool] | None = option(None, "Which of those kernels, as JSON. [their defaults]")
    chunked_cross_entropy: bool = option(
        True,
        "Compute the loss of a language model a few rows of its logits at a time, unless they are read.",
    )
    fast_dropout: bool = option(
        False,
        "On the CPU, draw the random numbers of dropout for four elements at once, others than torch would.",
    )
    skip_unread_tokens: bool = option(
        False,
        "Compute the last layer of classifiers such as BERT for the first token alone, with other draws of dropout.",
    )
    torch_empty_cache_steps: int | None = option(
        None, "Steps after which the device's unused memory is given back; slower. [never]", ge=1
    )
