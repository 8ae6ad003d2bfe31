"""Defines findings about a machine and their severities."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

ERROR = "error"  # keeps training from the best device of the machine, or from running at all
WARNING = "warning"  # training runs, and may go wrong or be cut short
NOTE = "note"  # as it should be, and good to know
SEVERITIES = (ERROR, WARNING, NOTE)


@dataclass(frozen=True)
class Finding:
    """A finding about a machine with its remedy.

    `what` and `remedy` are clauses without a full stop.
    """

    name: str  # for programs; stays the same from release to release
    severity: str
    what: str
    remedy: str
    details: tuple[str, ...] = ()
    device: str | None = None  # the finding is why this one is not used

    def to_dict(self) -> dict[str, Any]:
        """Returns every field, in types that JSON has."""
        return {**dataclasses.asdict(self), "details": list(self.details)}
