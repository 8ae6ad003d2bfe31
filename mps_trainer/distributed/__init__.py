"""Several processes that train together: their group, and what they tell each other."""

from . import collectives
from .group import first, init_process_group, leave
from .processes import Processes
from .rank_monitor import absent_named

__all__ = ["Processes", "absent_named", "collectives", "first", "init_process_group", "leave"]
