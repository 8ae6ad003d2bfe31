"""Number formats and activation checkpointing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import MisconfigurationException
from .fields import option

LAUNCHED = "ACCELERATE_MIXED_PRECISION"


@dataclass
class PrecisionArguments:
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


def launched_precision(environ: Mapping[str, str]) -> str:
    """Returns the autocast format that a launcher requests: "fp16", "bf16" or "no".

    Raises:
        MisconfigurationException: if it is anything else.
    """
    asked = environ.get(LAUNCHED, "no")
    if asked.lower() not in ("no", "fp16", "bf16"):
        raise MisconfigurationException(
            f"The environment variable {LAUNCHED} is {asked!r}, and this Trainer autocasts to fp16, bf16 or not at "
            "all (no). Set it to one of these, or leave it out."
        )
    return asked.lower()
