"""The errors that stop a run, each a type of its own so that callers can tell them apart."""

from __future__ import annotations


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
