"""Lists the arguments of transformers that this package refuses, each with what to use instead.

The pages list it from here. Nothing that is asked for is left out in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import MisconfigurationException


@dataclass(frozen=True)
class Refusal:
    """A field with its refused values, the reason, and what to use instead."""

    name: str
    values: str
    is_refused: Callable[[Any], bool]
    why: str
    instead: str


def _is_given(value: Any) -> bool:
    return value not in (None, False, "", [], {})


REFUSALS = [
    Refusal(
        "deepspeed", "any", _is_given,
        "DeepSpeed shards a model over several cuda processes, and this Trainer uses PyTorch's own FSDP2 for that",
        "Use fsdp=True with several processes, or activation_checkpointing on one device",
    ),
    Refusal(
        "parallelism_config", "any", _is_given,
        "it spreads a model over several devices in a way that this Trainer does not support",
        "Leave it out; fsdp=True shards the model over several processes",
    ),
    Refusal(
        "debug", "tpu_metrics_debug", lambda value: "tpu_metrics_debug" in value,
        "there is no TPU here", "Leave it out; mps-trainer check shows what a step does on mps",
    ),
    Refusal(
        "optim", "lomo, adalomo", lambda value: value in ("lomo", "adalomo"),
        "it updates the weights inside the backward pass, which this loop does not give it",
        "Use galore_adamw or adafactor, which save memory as well",
    ),
    Refusal(
        "optim", "adamw_torch_xla, adamw_torch_npu_fused",
        lambda value: value in ("adamw_torch_xla", "adamw_torch_npu_fused"),
        "it needs a TPU or an NPU",
        "Use adamw_torch_fused, whose kernels mps, cuda and cpu have",
    ),
]  # fmt: skip


def refuse_what_cannot_be(args: Any) -> None:
    """Raises MisconfigurationException for the first field of `args` with a refused value."""
    for refusal in REFUSALS:
        value = getattr(args, refusal.name)
        if refusal.is_refused(value):
            shown = getattr(value, "value", value)
            raise MisconfigurationException(
                f"{refusal.name}={shown!r} is not supported: {refusal.why}. {refusal.instead}."
            )
