"""The errors that stop a run, each a type of its own so that callers can tell them apart."""

from __future__ import annotations

import logging


class MisconfigurationException(ValueError):
    """A request that cannot be met; the message says what happened, why, and what to do next."""


class MissingPackageError(MisconfigurationException, ImportError):
    """A package is needed that is not installed. An `ImportError`, as in transformers."""


class ConflictingOptimizersError(MisconfigurationException, RuntimeError):
    """An optimizer was given in two ways that exclude each other. A `RuntimeError`, as in transformers."""


class UnknownSettingError(MisconfigurationException, TypeError):
    """A setting is not known to its receiver. A `TypeError`, as in transformers."""


class DeviceUnavailableError(MisconfigurationException):
    """An accelerator was requested by name and this machine cannot run it; carries the cause found and its remedy.

    `cause` and `remedy` are the clauses the message was built from ("" when the message stands alone).
    """

    def __init__(self, message: str, cause: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.cause = cause
        self.remedy = remedy


class MissingModelError(MisconfigurationException, RuntimeError):
    """There is nothing to train. A `RuntimeError`, as in transformers."""


class NotAnObjectError(MisconfigurationException, NotImplementedError):
    """A class was given where an object of it is wanted. A `NotImplementedError`, as in transformers."""


class SearchUnavailableError(MisconfigurationException, RuntimeError):
    """A search for hyper-parameters cannot run. A `RuntimeError`, as in transformers."""


class UnknownMetricError(MisconfigurationException, KeyError):
    """A metric that decides something is not in the evaluation. A `KeyError`, as in transformers."""

    __str__ = Exception.__str__  # a KeyError shows its message in quotes


class CheckpointError(OSError):
    """The last checkpoint of a run could not be written: the disk is full, or writing is not allowed."""


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


class AnotherProcessFailedError(RuntimeError):
    """Another of the processes that train together has failed; the message says which one, and of what."""


def explain(error: BaseException, explanation: str) -> None:
    """Adds an explanation to a foreign error, whose type and message stay.

    Python shows it below the traceback, as a note; before 3.11 there are no notes, and it is logged. The first
    explanation, nearest to the fault, stays.
    """
    if explanation_of(error) is not None:
        return
    error.__dict__["_explanation"] = explanation
    if hasattr(error, "add_note"):
        error.add_note(explanation)
    else:
        logging.getLogger(__name__).error("%s", explanation)


def explanation_of(error: BaseException) -> str | None:
    """Returns the one line that `explain` added to `error`, or to an error that it came from; None without."""
    seen: BaseException | None = error
    while seen is not None:
        if (explanation := getattr(seen, "_explanation", None)) is not None:
            return explanation
        seen = seen.__cause__ or seen.__context__
    return None
