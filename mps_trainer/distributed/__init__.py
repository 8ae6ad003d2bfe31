"""Several processes that train together: their group, and what they tell each other."""

from . import collectives
from .group import first, init_process_group, leave
from .processes import Processes

__all__ = ["Processes", "collectives", "first", "init_process_group", "leave"]
