"""Formats amounts of memory for people."""

from __future__ import annotations


def format_bytes(size: float) -> str:
    """Returns a size in words: "1.5 KiB" for 1536."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
