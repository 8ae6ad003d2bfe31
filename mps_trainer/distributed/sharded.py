"""Questions about a sharded model that need no import of torch's FSDP."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def is_sharded(model: Any) -> bool:
    """Returns True if torch has sharded `model`, without importing torch's FSDP."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(fsdp, "FSDPModule", None)
    return kind is not None and isinstance(model, kind)


def class_of(model: nn.Module) -> type:
    """Returns the model's own class, without the one that torch's FSDP derives from it."""
    return type(model).__mro__[2] if is_sharded(model) else type(model)


@contextlib.contextmanager
def reshard_after(model: nn.Module) -> Iterator[None]:
    """Reshards at the end the parameters that a forward pass without gradients has gathered."""
    try:
        yield
    finally:
        for module in model.modules():
            if is_sharded(module):
                module.reshard()  # type: ignore[operator]
