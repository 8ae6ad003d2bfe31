"""The errors that stop a run, each a type of its own so that callers can tell them apart."""

from __future__ import annotations


class MisconfigurationException(ValueError):
    """What was asked for cannot be done as asked; the message says what happened, why, and what to do next."""


class DeviceUnavailableError(MisconfigurationException):
    """An accelerator was requested by name and this machine cannot run it; carries the cause found and its remedy."""
