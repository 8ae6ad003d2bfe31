"""Notes which operators fall back from mps to the CPU during a run, without a look at its steps."""

from __future__ import annotations

import os
import re
import warnings
from typing import Any

from ..devices.probes import FALLBACK, switched_on

_WARNING = re.compile(r"The operator '([^']+)' is not currently supported on the MPS backend")


class FallbackWatch:
    """Notes the operators that torch warns of, up to `end`.

    torch warns, through Python's warnings, of the first operator that falls back in a process and of no other
    (TORCH_WARN_ONCE in aten/src/ATen/mps/MPSFallback.mm), so a name is certain and a list is not.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._shown: Any = warnings.showwarning
        warnings.showwarning = self._show

    def end(self) -> dict[str, Any]:
        """Returns `text`, and `operators` with name, calls and shapes (None: not counted)."""
        if warnings.showwarning == self._show:  # if not, another was put in between, which calls this one
            warnings.showwarning = self._shown
        if self._names or switched_on(os.environ.get(FALLBACK)):
            text = "torch names only the first operator of a process that falls back, so there may be more"
        else:
            text = (
                f"torch warned of none. {FALLBACK} is off, so that an operator without a kernel for mps is an error, "
                "except for the few that always go to the CPU"
            )
        operators = [{"name": name, "calls": None, "shapes": None} for name in self._names]
        return {"text": f"{text}. `mps-trainer check SCRIPT` lists them.", "operators": operators}

    def _show(self, message: Any, category: Any, *details: Any, **more: Any) -> None:
        found = _WARNING.match(str(message))
        if found is not None and found[1] not in self._names:
            self._names.append(found[1])
        self._shown(message, category, *details, **more)
