"""Names the callback that raised an error."""

from __future__ import annotations

from typing import Any

from ..errors import explain

_TELLERS = ("tell", "call_event")  # functions that go through the callbacks: this package's and transformers'


def explain_callback(error: Exception, event: str, step: int) -> None:
    """Explains `error`, raised by a callback at `event`: the callback's class and where in the run it was.

    `step` is the number of optimizer steps that are done.
    """
    callback = failing_callback(error)
    if callback is None:
        return
    name = getattr(callback, "__qualname__", type(callback).__qualname__)
    explain(
        error,
        f"The callback {name} failed at {event}, after step {step}, with {type(error).__name__}: {first_line(error)} "
        "Fix the callback or leave it out of callbacks. Existing checkpoints are valid; "
        "resume_from_checkpoint=True resumes from the newest.",
    )


def failing_callback(error: Exception) -> Any:
    """Returns the callback that raised the error, or None if the error has another origin."""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_name in _TELLERS and "callback" in frame.f_locals:
            return frame.f_locals["callback"]
        trace = trace.tb_next
    return None


def first_line(message: object) -> str:
    """Returns the first line of an error, or of its message, as a sentence."""
    lines = str(message).strip().splitlines()
    text = lines[0].strip() if lines else "it says nothing."
    return text if text.endswith((".", "!", "?")) else f"{text}."
