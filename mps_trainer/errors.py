"""Defines the errors that stop a run. Each has its own type, which a caller can catch."""

from __future__ import annotations

import logging
from typing import Any


class MisconfigurationException(ValueError):
    """The request cannot be met. The message says what happened, why, and what to do next."""


class MissingPackageError(MisconfigurationException, ImportError):
    """A required package is not installed. An `ImportError`, as in transformers."""


class ConflictingOptimizersError(MisconfigurationException, RuntimeError):
    """An optimizer was given in two conflicting ways. A `RuntimeError`, as in transformers."""


class UnknownSettingError(MisconfigurationException, TypeError):
    """A function or class does not know a setting. A `TypeError`, as in transformers."""


class DeviceUnavailableError(MisconfigurationException):
    """This machine cannot run the accelerator that was requested by name. Has the cause and the remedy.

    `cause` and `remedy` are clauses of the message ("" if it has none).
    """

    def __init__(self, message: str, cause: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.cause = cause
        self.remedy = remedy


class MissingModelError(MisconfigurationException, RuntimeError):
    """There is nothing to train. A `RuntimeError`, as in transformers."""


class NotAnObjectError(MisconfigurationException, NotImplementedError):
    """A class was given instead of an instance. A `NotImplementedError`, as in transformers."""


class SearchUnavailableError(MisconfigurationException, RuntimeError):
    """A search for hyper-parameters cannot run. A `RuntimeError`, as in transformers."""


class UnknownMetricError(MisconfigurationException, KeyError):
    """The evaluation lacks a metric that a decision needs. A `KeyError`, as in transformers."""

    __str__ = Exception.__str__  # a KeyError shows its message in quotes


class UnsupportedFormatError(MisconfigurationException, TypeError):
    """The device does not have the number format of a tensor. A `TypeError`, as in torch."""


class InvalidBatchError(MisconfigurationException, IndexError):
    """A batch has values for which the model has no class, token or position. An `IndexError`, as in torch."""


class CheckpointError(OSError):
    """The last checkpoint of a run could not be written, as on a full or read-only disk."""


class NonFiniteLossError(MisconfigurationException, ArithmeticError):
    """The loss or the norm of the gradients is not finite, and `stop_on_nan` stops the run.

    `step` is the optimizer step that was not made, counted from 1, `learning_rate` its learning rate, `rows` the
    indices of its examples in the training dataset (None if unknown), and `checkpoint` the folder to resume from,
    which tries that step again (None if there is none).
    """

    def __init__(
        self,
        message: str,
        step: int = 0,
        learning_rate: float | None = None,
        rows: list[int] | None = None,
        checkpoint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.step = step
        self.learning_rate = learning_rate
        self.rows = rows
        self.checkpoint = checkpoint


class DifferentExchangesError(RuntimeError):
    """The processes exchanged numbers that mean different things. The message says where this one was."""


class AnotherProcessFailedError(RuntimeError):
    """Another training process has failed. The message names the process and its error."""


def explain(error: BaseException, explanation: str) -> None:
    """Adds an explanation to the error of a library and keeps its type and message.

    Python shows it as a note below the traceback. Python 3.10 has no notes, so it is logged there. Only the first
    explanation is kept, because it is nearest to the fault.
    """
    if explanation_of(error) is not None:
        return
    error.__dict__["_explanation"] = explanation
    if hasattr(error, "add_note"):
        error.add_note(explanation)
    else:
        logging.getLogger(__name__).error("%s", explanation)


def add_to_explanation(error: BaseException, sentence: str) -> None:
    """Adds a sentence to the line that `explain` added to `error` or to one of its causes."""
    if (explained := _explained(error)) is not None:
        before, text = explained._explanation, f"{explained._explanation} {sentence}"
        explained.__dict__["_explanation"] = text
        notes = getattr(explained, "__notes__", [])
        notes[:] = [text if note == before else note for note in notes]


def explanation_of(error: BaseException) -> str | None:
    """Returns the line that `explain` added to `error` or to one of its causes, or None."""
    return getattr(_explained(error), "_explanation", None)


def _explained(error: BaseException) -> Any:
    """Returns the first of `error` and its causes that `explain` was called for, or None."""
    return next((one for one in with_causes(error) if hasattr(one, "_explanation")), None)


def with_causes(error: BaseException) -> list[BaseException]:
    """Returns `error` and its causes. `raise error from error` makes an error its own cause."""
    found, following = [error], error.__cause__ or error.__context__
    while following is not None and following not in found:
        found.append(following)
        following = following.__cause__ or following.__context__
    return found
