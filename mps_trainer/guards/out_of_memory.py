"""Builds the out-of-memory error: what held the memory, and which settings save most."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ..errors import MisconfigurationException
from ..utils.amounts import format_bytes
from ..utils.text import choice_text
from .memory_table import MemoryTable, measure

# How torch's allocators say it. Those of cuda and xpu have a type of their own besides.
_MESSAGES = ("out of memory", "DefaultCPUAllocator: can't allocate memory", "CUDNN_STATUS_NOT_SUPPORTED")

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
    """Names what the out-of-memory error tells about a Trainer."""

    args: Any
    optimizer: Any
    compute_metrics: Any
    is_in_train: bool
    _mt_precision: Any


@dataclass(frozen=True)
class RunDescription:
    """Describes the run for the out-of-memory error."""

    args: Any
    model: Any  # None before the first one is on the device
    optimizer: Any  # None before it is made
    autocast_dtype: torch.dtype | None
    state: Any  # None before the first one is made
    has_metrics: bool  # True if there is a compute_metrics
    is_training: bool  # True inside train(), even while it evaluates

    @classmethod
    def of(cls, trainer: DescribedTrainer) -> RunDescription:
        """Returns the run as it is now. Memory may run out before the Trainer's __init__ has ended."""
        return cls(
            args=trainer.args,
            model=getattr(trainer, "model", None),
            optimizer=trainer.optimizer,
            autocast_dtype=trainer._mt_precision.dtype,
            state=getattr(trainer, "state", None),
            has_metrics=trainer.compute_metrics is not None,
            is_training=trainer.is_in_train,
        )

    @property
    def step(self) -> int:
        """The step that is being computed, from 1."""
        return 1 if self.state is None else self.state.global_step + 1

    @property
    def batch_size(self) -> int:
        """The examples that one forward pass takes in training."""
        return getattr(self.state, "train_batch_size", None) or self.args.train_batch_size


def out_of_memory(error: BaseException) -> bool:
    """Returns True if `error` says that a device, or the host, has too little memory."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)


@contextlib.contextmanager
def explained(trainer: DescribedTrainer, doing: str) -> Iterator[None]:
    """Raises DeviceOutOfMemoryError if memory runs out inside.

    Args:
        doing: one of the words above, "evaluation" or "prediction".
    """
    try:
        yield
    except DeviceOutOfMemoryError:
        raise
    except (RuntimeError, NothingLeftToSplitError) as error:
        if isinstance(error, RuntimeError) and not out_of_memory(error):
            raise
        run = RunDescription.of(trainer)
        # measured before the error lets go of what was computed
        memory = measure(run.args.device, run.model, run.optimizer)
        remedies = remedies_for(run, doing, memory)
        raise DeviceOutOfMemoryError(_message(run, doing, error, memory, remedies), memory, remedies) from error


def _message(run: RunDescription, doing: str, error: Exception, memory: MemoryTable, remedies: list[str]) -> str:
    cause, why_not = error, ""
    if isinstance(error, NothingLeftToSplitError):
        why_not = f", and auto_find_batch_size cannot split the batch: {error}"
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    said = str(cause)
    step = f" in step {run.step}" if doing == TRAINING else ""
    tried = re.search(r"[Tt]ried to allocate ([\d.]+ \w+)", said)
    limit = re.search(r"max allowed: ([\d.]+ \w+)", said)
    facts = str(memory)
    if limit:
        facts += f", limit {limit[1]}"
    if tried:
        size, _, unit = tried[1].partition(" ")
        facts += f"; {format_bytes(int(size)) if unit == 'bytes' else tried[1]} more were asked for"
    numbered = "; ".join(f"({i}) {remedy}" for i, remedy in enumerate(remedies, start=1))
    text = f"{memory.device} ran out of memory in {doing}{step}{why_not}. Held: {facts}. What to do: {numbered}."
    return f"{text} `mps-trainer fit SCRIPT` computes what they save." if doing in (TRAINING, PLACING) else text


def remedies_for(run: RunDescription, doing: str, memory: MemoryTable) -> list[str]:
    """Returns up to three settings to change, in the order of the memory that they save in this run."""
    if doing == TRAINING:
        found = _for_training(run, memory)
    elif doing == PLACING:
        found = [(3, "take a smaller model"), (2, "load it in 16 bits (dtype='bfloat16')")]
        found.append((1, "end other programs that hold the memory of the device"))
    else:
        found = _for_evaluation(run)
    return [text for _, text in sorted(found, key=lambda remedy: -remedy[0])][:_REMEDIES]


def _for_training(run: RunDescription, memory: MemoryTable) -> list[tuple[float, str]]:
    """Returns remedies, each with an estimate of the bytes that it saves."""
    args, model, size = run.args, run.model, run.batch_size
    optim = choice_text(args.optim)
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    # before the first update the gradients and the optimizer's state are still to come
    state = max(memory.optimizer, 2 * trained if "adam" in optim and not memory.optimizer else 0)
    # unknown on the CPU, where they are the first to suspect
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
        found.append(
            (_CHECKPOINTING * activations, "activation_checkpointing=True, which computes them twice instead")
        )
    if run.autocast_dtype is None:
        found.append((_AUTOCAST * activations, "bf16=True"))
    if state > trained and "adafactor" not in optim:
        found.append(
            (
                0.9 * state,
                f"optim='adafactor', which keeps little beside the weights ({optim} keeps two values for each)",
            )
        )
    return found


def _for_evaluation(run: RunDescription) -> list[tuple[float, str]]:
    args = run.args
    found: list[tuple[float, str]] = [(0.5, "shorter or smaller examples")]
    if args.per_device_eval_batch_size > 1:
        found.append((4, f"per_device_eval_batch_size={-(-args.per_device_eval_batch_size // 2)}"))
    if run.has_metrics and args.eval_accumulation_steps is None and not args.batch_eval_metrics:
        found.append((3, "eval_accumulation_steps=1, which moves predictions to host memory after each batch"))
    if not (args.bf16_full_eval or args.fp16_full_eval) and not run.is_training:
        found.append((2, "bf16_full_eval=True"))
    if run.autocast_dtype is None:
        found.append((1, "bf16=True"))
    return found
