"""Names the callback that raised an error."""

from __future__ import annotations

from typing import Any

from ..errors import explain
from .gpu_faults import is_gpu_fault


def explain_callback(error: Exception, event: str, step: int) -> None:
    """Explains `error`, raised by a callback at `event`: the callback's class and where in the run it was.

    `step` is the number of optimizer steps that are done.
    """
    callback = failing_callback(error)
    if callback is None or is_gpu_fault(error):  # a callback that reads a tensor meets the fault of an earlier command
        return
    name = getattr(callback, "__qualname__", type(callback).__qualname__)
    explain(
        error,
        f"The callback {name} failed at {event}, after step {step}. Fix the callback or leave it out of callbacks.",
    )


def failing_callback(error: Exception) -> Any:
    """Returns the callback that raised the error, or None if the error has another origin."""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_name == "call_event" and "callback" in frame.f_locals:
            return frame.f_locals["callback"]
        trace = trace.tb_next
    return None
