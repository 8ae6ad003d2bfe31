"""Whether a model is spread over the processes, for those who only look at it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def is_sharded(model: Any) -> bool:
    """Whether torch has sharded `model`. What does that need not be loaded for the answer."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(fsdp, "FSDPModule", None)
    return kind is not None and isinstance(model, kind)


def class_of(model: nn.Module) -> type:
    """The model's own class, of which torch makes one of the same name with FSDP before it."""
    return type(model).__mro__[2] if is_sharded(model) else type(model)
