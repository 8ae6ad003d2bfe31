"""What ends the script with one line and no traceback."""

from __future__ import annotations

from mps_trainer import MisconfigurationException


class UserError(MisconfigurationException):
    """Something that the person who typed the command can put right; the message says how."""
