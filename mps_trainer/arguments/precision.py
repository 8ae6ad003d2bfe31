"""Number formats and memory for time."""

from __future__ import annotations

from dataclasses import dataclass

from .fields import option


@dataclass
class PrecisionArguments:
    bf16: bool = option(False, "Autocast to bfloat16 (cpu, mps from macOS 14, cuda from Ampere).")
    fp16: bool = option(False, "Autocast to float16 with a gradient scaler.")
    activation_checkpointing: bool = option(
        False, "Compute activations again in the backward pass instead of keeping them: less memory, more time."
    )
    activation_checkpointing_kwargs: dict | str | None = option(
        None, "Settings for torch.utils.checkpoint, as JSON. Default: use_reentrant false."
    )
    gradient_checkpointing: bool = option(False, "Another name of activation_checkpointing.")
    gradient_checkpointing_kwargs: dict | str | None = option(None, "Another name of activation_checkpointing_kwargs.")
