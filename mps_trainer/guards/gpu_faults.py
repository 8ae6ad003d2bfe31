"""Explains the error of a GPU command that failed."""

from __future__ import annotations

# torch 2.15 raises a RuntimeError with these words. Earlier releases go on with garbage (pytorch issue 193571).
_FAULT = "MPS command buffer execution failed"
_NO_MEMORY = ("Insufficient Memory", "OutOfMemory")  # Metal's words in it

EXPLANATION = (
    "macOS ended a command of the GPU: memory ran out, or the command kept the GPU busy for long while the display "
    "was on. The weights in memory are not trusted, and they were not saved. Use a smaller "
    "per_device_train_batch_size with more gradient_accumulation_steps, chunked_attention=True for long texts, or let "
    "the display sleep (pmset displaysleepnow). `mps-trainer run --restarts 3` starts such a run again."
)


def is_gpu_fault(error: BaseException) -> bool:
    """Returns True if torch says that a command of the GPU failed."""
    return isinstance(error, RuntimeError) and _FAULT in str(error)


def ran_out_of_memory(error: BaseException) -> bool:
    """Returns True if the command failed for memory."""
    return is_gpu_fault(error) and any(words in str(error) for words in _NO_MEMORY)
