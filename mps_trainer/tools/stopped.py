"""Defines how a tool ends a script that it has looked at for long enough."""

from __future__ import annotations

from typing import Any


class ScriptStopped(BaseException):
    """Ends a script from inside, past every `except Exception`; carries what was to be found out."""

    def __init__(self, *found: Any) -> None:
        super().__init__("The script was stopped.")
        self.found = found
