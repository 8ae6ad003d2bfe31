"""Builds the out-of-memory error: what held the memory, and which settings save most."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Iterator
from typing import Any, Protocol

import torch

from ..errors import MisconfigurationException, with_causes
from ..utils.text import choice_text, format_bytes
from .memory import MemoryTable, measure

# How torch's allocators say it. Those of cuda and xpu have a type of their own besides.
_MESSAGES = (
    "out of memory",
    "Invalid buffer size: ",  # mps: a tensor is larger than a buffer of Metal can be (pytorch issue 141909)
    "DefaultCPUAllocator: can't allocate memory",
    "CUDNN_STATUS_NOT_SUPPORTED",
)

TRAINING, PLACING = "training", "placing the model"

# The share of what activations take that each remedy saves, as a rule of thumb to order them by. Halving goes on until
# one example is left; checkpointing keeps the input of each layer; autocast keeps about half of the activations in 16
# bits; attention is the one part that shrinks with the square of the length.
_CHECKPOINTING, _AUTOCAST, _LENGTH = 0.7, 0.4, 0.35
_REMEDIES = 3


class DeviceOutOfMemoryError(MisconfigurationException, torch.OutOfMemoryError):
    """The device has too little memory. A subclass of torch's own out-of-memory error, a `RuntimeError`.

    `memory` is the use of memory at that moment, `remedies` what to do, the likeliest to help first, and `__cause__`
    the allocator's error.
    """

    def __init__(self, message: str, memory: MemoryTable, remedies: list[str]) -> None:
        super().__init__(message)
        self.memory = memory
        self.remedies = remedies


class NothingLeftToSplitError(Exception):
    """Memory ran out, and the batches of the update cannot be split. The message is a clause with the reason."""


class DescribedTrainer(Protocol):
    """Names what the out-of-memory error describes of a Trainer, whose __init__ may not have ended."""

    args: Any
    optimizer: Any
    compute_metrics: Any
    is_in_train: bool
    _mt_precision: Any


def out_of_memory(error: BaseException) -> bool:
    """Returns True if `error` says that a device, or the host, has too little memory."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)


@contextlib.contextmanager
def explained(trainer: DescribedTrainer, doing: str) -> Iterator[None]:
    """Raises DeviceOutOfMemoryError if memory runs out inside.

    Args:
        doing: TRAINING, PLACING, "evaluation" or "prediction".
    """
    try:
        yield
    except DeviceOutOfMemoryError:
        raise
    except (RuntimeError, NothingLeftToSplitError) as error:
        if isinstance(error, RuntimeError) and not out_of_memory(error):
            raise
        # measured before the error releases what was computed
        memory = measure(trainer.args.device, getattr(trainer, "model", None), trainer.optimizer)
        remedies = _remedies(trainer, doing, memory)
        _clear_frames(error)
        raise DeviceOutOfMemoryError(_message(trainer, doing, error, memory, remedies), memory, remedies) from error


def _clear_frames(error: BaseException) -> None:
    """Clears the local variables of all frames of `error`: a notebook keeps it, and they keep all activations."""
    # The loop is not in `explained`: the traceback has that function's frame, and the two would keep each other.
    for one in with_causes(error):
        traceback.clear_frames(one.__traceback__)


def _message(trainer: DescribedTrainer, doing: str, error: Exception, memory: MemoryTable, remedies: list[str]) -> str:
    why_not = step = ""
    if isinstance(error, NothingLeftToSplitError):
        why_not = f", and auto_find_batch_size cannot split the batch: {error}"
    if doing == TRAINING:
        state = getattr(trainer, "state", None)
        step = f" in step {1 if state is None else state.global_step + 1}"
    said, facts = str(error.__cause__ if why_not and error.__cause__ else error), str(memory)
    if limit := re.search(r"max allowed: ([\d.]+ \w+)", said):
        facts += f", limit {limit[1]}"
    if tried := re.search(r"(?:[Tt]ried to allocate|Invalid buffer size:) ([\d.]+) (\w+)", said):
        size = format_bytes(int(tried[1])) if tried[2] == "bytes" else f"{tried[1]} {tried[2]}"
        facts += f"; {size} more were asked for"
    numbered = "; ".join(f"({i}) {remedy}" for i, remedy in enumerate(remedies, start=1))
    text = f"{memory.device} ran out of memory in {doing}{step}{why_not}. Held: {facts}. What to do: {numbered}."
    return f"{text} `mps-trainer fit SCRIPT` computes what they save." if doing in (TRAINING, PLACING) else text


def _remedies(trainer: DescribedTrainer, doing: str, memory: MemoryTable) -> list[str]:
    """Returns up to three settings to change, the one that saves most memory in this run first."""
    if doing == PLACING:
        return [
            "take a smaller model",
            "load it in 16 bits (dtype='bfloat16')",
            "end other programs that hold the memory of the device",
        ]
    if doing != TRAINING:
        return _for_evaluation(trainer)[:_REMEDIES]
    found = sorted(_for_training(trainer, memory), key=lambda remedy: -remedy[0])
    return [text for _, text in found][:_REMEDIES]


def _for_training(trainer: Any, memory: MemoryTable) -> list[tuple[float, str]]:
    """Returns remedies, each with an estimate of the bytes that it saves."""
    args, model = trainer.args, trainer.model
    size = getattr(getattr(trainer, "state", None), "train_batch_size", None) or args.train_batch_size
    optim = choice_text(args.optim)
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    # before the first update the gradients and the optimizer's state are still to come
    state = max(memory.optimizer, 2 * trained if "adam" in optim and not memory.optimizer else 0)
    # on the CPU activations are not measured, and are the likeliest cause
    activations = 4 * (trained + state) if memory.live is None else memory.activations
    found: list[tuple[float, str]] = [
        (_LENGTH * activations, "shorter or smaller examples (truncate them, as run_glue.py's --max_seq_length does)"),
        (0.9 * (trained + state), "train fewer weights, for example adapters of PEFT (LoRA)"),
    ]
    if size > 1 and not args.auto_find_batch_size:
        half, twice = -(-size // 2), 2 * args.gradient_accumulation_steps
        text = (
            f"auto_find_batch_size=True, or per_device_train_batch_size={half} with "
            f"gradient_accumulation_steps={twice}, which is the same update"
        )
        found.append(((1 - 1 / size) * activations, text))
    if not args.activation_checkpointing and hasattr(model, "gradient_checkpointing_enable"):
        text = "gradient_checkpointing=True, which computes activations twice instead of keeping them"
        found.append((_CHECKPOINTING * activations, text))
    if trainer._mt_precision.dtype is None:
        found.append((_AUTOCAST * activations, "bf16=True"))
    if state > trained and "adafactor" not in optim:
        text = f"optim='adafactor', which keeps little beside the weights ({optim} keeps two values for each)"
        found.append((0.9 * state, text))
    return found


def _for_evaluation(trainer: DescribedTrainer) -> list[str]:
    """Returns remedies, the likeliest to help first."""
    args, found = trainer.args, []
    if args.per_device_eval_batch_size > 1:
        found.append(f"per_device_eval_batch_size={-(-args.per_device_eval_batch_size // 2)}")
    if trainer.compute_metrics is not None and args.eval_accumulation_steps is None and not args.batch_eval_metrics:
        found.append("eval_accumulation_steps=1, which moves predictions to host memory after each batch")
    if not (args.bf16_full_eval or args.fp16_full_eval) and not trainer.is_in_train:
        found.append("bf16_full_eval=True")
    if trainer._mt_precision.dtype is None:
        found.append("bf16=True")
    return [*found, "shorter or smaller examples"]
