"""Checks on any machine which operators of a training step the installed torch runs on mps.

The public names of `tools/check`.
"""

from .tools.check import *  # noqa: F403
from .tools.check import __all__ as __all__
