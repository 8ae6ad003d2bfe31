"""Formats numbers, times and names as a page shows them."""

from __future__ import annotations

import time
from typing import Any

from .record import is_finite, is_number


def number(value: Any) -> str:
    """Returns four significant digits, as "2.5e-4" below a thousandth; whole numbers have all of theirs."""
    if not is_number(value):
        return str(value)
    if not is_finite(value):
        return str(value)[:40]
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if size >= 1e-3 else scientific(value)


def scientific(value: float) -> str:
    """Returns "2.5e-4" for 0.00025."""
    digits, _, power = f"{value:.2e}".partition("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"


def duration(seconds: float) -> str:
    """Returns "1 min 15 s" for 75."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def date(seconds: float) -> str:
    """Returns date and time in the local time zone."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def percentage(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "–"


def metric_name(name: str) -> str:
    """Returns "f1" for eval_f1; other evaluations keep their name in front."""
    return "evaluation loss" if name == "eval_loss" else name.removeprefix("eval_").replace("_", " ")
