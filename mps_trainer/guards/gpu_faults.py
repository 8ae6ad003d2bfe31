"""Explains errors that only mps raises: a GPU command that failed, and a layer without gradients."""

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

# torch 2.14 and later raise this in the backward pass of linear (pytorch issue 189565); earlier ones end the process.
_VECTOR_WEIGHT = "mat2 must be a matrix, got 1-D tensor"
_VECTOR_WEIGHT_EXPLANATION = (
    "mps has no gradients of torch.nn.functional.linear with a weight of one dimension (pytorch issue 189565). Give "
    "the weight two dimensions, linear(x, weight[None]), and drop the last dimension of the result."
)


def is_gpu_fault(error: BaseException) -> bool:
    """Returns True if torch says that a command of the GPU failed."""
    return isinstance(error, RuntimeError) and _FAULT in str(error)


def ran_out_of_memory(error: BaseException) -> bool:
    """Returns True if the command failed for memory."""
    return is_gpu_fault(error) and any(words in str(error) for words in _NO_MEMORY)


def explanation_of_mps_error(error: BaseException) -> str | None:
    """Returns the cause and the remedy of an error that only mps raises, None for another error."""
    if is_gpu_fault(error):
        return EXPLANATION
    if isinstance(error, RuntimeError) and _VECTOR_WEIGHT in str(error):
        return _VECTOR_WEIGHT_EXPLANATION
    return None
