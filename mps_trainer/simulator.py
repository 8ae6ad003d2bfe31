"""Simulates an `mps` device that fails where a Mac fails and counts operations that cost time there.

The public names of `tools/simulator`. Importing this module before torch takes CUDA out of the process where torch is
built for it and there is no NVIDIA GPU; see `hide_cuda`.
"""

from typing import TYPE_CHECKING, Any

from .tools import simulator as _simulator
from .tools.simulator import __all__ as __all__

if TYPE_CHECKING:
    from .tools.simulator import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_simulator, name)  # loaded on first use, as there
