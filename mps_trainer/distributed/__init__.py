"""Trains in several processes: the process group and the collectives."""

from .group import first, init_process_group, leave
from .processes import Processes
from .rank_monitor import absent_named

__all__ = ["Processes", "absent_named", "first", "init_process_group", "leave"]
