"""Memory of the process and the machine, and the load of the processors, through psutil."""

from __future__ import annotations

from typing import Any


def host_stats() -> dict[str, Any]:
    """Returns the memory of this process and this machine, and the load of all processors since the last call."""
    import psutil  # not for `import mps_trainer`

    swap = psutil.swap_memory()
    return {
        "process_rss_bytes": psutil.Process().memory_info().rss,
        "memory_available_bytes": psutil.virtual_memory().available,
        "swap_used_bytes": swap.used,
        "swap_percent": swap.percent,
        "cpu_percent": psutil.cpu_percent(),
    }
