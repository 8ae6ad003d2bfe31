"""The errors that stop a run, each a type of its own so that callers can tell them apart."""

from __future__ import annotations

import logging


class MisconfigurationException(ValueError):
    """What was asked for cannot be done as asked; the message says what happened, why, and what to do next."""


class MissingPackageError(MisconfigurationException, ImportError):
    """What was asked for needs a package that is not installed. An `ImportError`, as in transformers."""


class ConflictingOptimizersError(MisconfigurationException, RuntimeError):
    """An optimizer was given in two ways that exclude each other. A `RuntimeError`, as in transformers."""


class UnknownSettingError(MisconfigurationException, TypeError):
    """A setting that what it is for does not take. A `TypeError`, as in transformers."""


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
    """Hyper-parameters cannot be searched for with what there is. A `RuntimeError`, as in transformers."""


class UnknownMetricError(MisconfigurationException, KeyError):
    """A metric is to decide something and is not among those of the evaluation. A `KeyError`, as in transformers."""

    __str__ = Exception.__str__  # a KeyError shows its message in quotes


class CheckpointError(OSError):
    """The last checkpoint of a run could not be written: the disk is full, or the folder is not to be written to."""


class NonFiniteLossError(MisconfigurationException, ArithmeticError):
    """The loss or the norm of the gradients is no finite number, and `stop_on_nan` asked to stop at that.

    `step` is the optimizer step that was not made, counted from 1; `learning_rate` is what it would have been made
    with, `rows` the indices of its examples in the training dataset (None where they cannot be told), and `checkpoint`
    the folder to go on from, which tries that step again (None if there is none).
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
    """Adds to an error of somebody else's what this package knows of it; type and message stay.

    A note, which Python shows below the traceback; before 3.11 there are none, and it is logged. What was explained
    first, nearest to where it happened, stays.
    """
    if explanation_of(error) is not None:
        return
    error.__dict__["_explanation"] = explanation
    if hasattr(error, "add_note"):
        error.add_note(explanation)
    else:
        logging.getLogger(__name__).error("%s", explanation)


def explanation_of(error: BaseException) -> str | None:
    """What `explain` has added to `error`, or to the one that it came from, one line; None if nothing was."""
    seen: BaseException | None = error
    while seen is not None:
        if (explanation := getattr(seen, "_explanation", None)) is not None:
            return explanation
        seen = seen.__cause__ or seen.__context__
    return None
