"""Passes an accelerator of this package off as Lightning's own, which Lightning asks for."""

from __future__ import annotations

import sys

# Where `lightning.Trainer`, `lightning.Fabric` and the older package's Trainer have their class for mps.
_MODULES = (
    "lightning.pytorch.accelerators.mps",
    "lightning.fabric.accelerators.mps",
    "pytorch_lightning.accelerators.mps",
    "lightning_fabric.accelerators.mps",
)


def count_as_lightnings(kind: type) -> None:
    """Makes objects of `kind` pass for Lightning's own MPSAccelerator, if Lightning is loaded; nothing is imported.

    Its Trainer takes objects of its abstract class Accelerator only, and trains on the CPU with those that are not of
    its MPSAccelerator (`_choose_strategy`, 2.6). Both are abstract base classes, with which others may be registered.
    """
    for name in _MODULES:
        theirs = getattr(sys.modules.get(name), "MPSAccelerator", None)
        if theirs is not None:
            theirs.register(kind)
