"""Looks through the wrappers that torch.compile puts around a model or parts of it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

_INSIDE = "_orig_mod"
WRAPPER = rf"\b{_INSIDE}\."  # the part of parameters' names that a wrapper adds


def inside_compiled(model: Any) -> Any:
    """Returns the model inside torch.compile's wrapper, or `model` itself."""
    return getattr(model, _INSIDE, model)


def is_compiled(model: Any) -> bool:
    """Returns True if `model` is torch.compile's wrapper."""
    return hasattr(model, _INSIDE)


def plain_name(name: str) -> str:
    """Returns a parameter's name in the uncompiled model."""
    return re.sub(WRAPPER, "", name)


@contextlib.contextmanager
def uncompiled(model: Any) -> Iterator[Any]:
    """Inside, removes the wrappers from `model`, so that parameters have the names of the uncompiled model.

    A forward pass inside is not compiled.
    """
    inner = inside_compiled(model)
    wrapped = [
        (parent._modules, name, child)
        for parent in list(inner.modules())
        for name, child in parent._modules.items()
        if child is not None and _INSIDE in child._modules
    ]
    for children, name, child in wrapped:
        children[name] = inside_compiled(child)
    try:
        yield inner
    finally:
        for children, name, child in wrapped:
            children[name] = child
