"""Computes how much memory a training step needs on a Mac, from the shapes of its tensors.

The public names of `tools/fit`.
"""

from .tools.fit import *  # noqa: F403
from .tools.fit import __all__ as __all__
