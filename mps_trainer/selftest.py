"""Tests within a minute whether training works here: a tiny model on the device is compared with the CPU.

The public names of `tools/selftest`.
"""

from .tools.selftest import *  # noqa: F403
from .tools.selftest import __all__ as __all__
