"""Defines the error that ends the script with one line and no traceback."""

from __future__ import annotations

from mps_trainer import MisconfigurationException


class UserError(MisconfigurationException):
    """An error that the user can correct. The message says how."""
