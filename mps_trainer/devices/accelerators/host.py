"""Memory of the process and the machine, and the load of the processors, through psutil."""

from __future__ import annotations

import time
from typing import Any

_SHORTEST = 0.1  # seconds: the clocks behind the percentage tick a hundred times a second


class ProcessorLoad:
    """The percentage of all processors' time that was used between two looks, by whatever program.

    psutil's own `cpu_percent()` answers its first call with 0.0, and shares its last look with all its callers.
    """

    def __init__(self) -> None:
        self._busy = self._all = self._at = 0.0
        self._percent: float | None = None
        self._begun = False

    def look(self) -> float | None:
        """Returns the load since the last look, 0 to 100: None the first time, the last answer within 0.1 s."""
        import psutil

        now = time.monotonic()
        if self._begun and now - self._at < _SHORTEST:
            return self._percent
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        # Linux counts the time of guests twice: as theirs, and in user and nice
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        if self._begun and total > self._all:
            percent = 100 * (total - idle - self._busy) / (total - self._all)
            self._percent = round(min(max(percent, 0.0), 100.0), 1)
        self._busy, self._all, self._at, self._begun = total - idle, total, now, True
        return self._percent


_load = ProcessorLoad()


def host_stats() -> dict[str, Any]:
    """Returns the memory of this process and this machine, and `cpu_percent`.

    `cpu_percent` is of all processors, since the last call; the first call in a process has none.
    """
    import psutil  # not for `import mps_trainer`

    swap = psutil.swap_memory()
    stats = {
        "process_rss_bytes": psutil.Process().memory_info().rss,
        "memory_available_bytes": psutil.virtual_memory().available,
        "swap_used_bytes": swap.used,
        "swap_percent": swap.percent,
    }
    if (percent := _load.look()) is not None:
        stats["cpu_percent"] = percent
    return stats
