"""Finds the operators of a run that fell back to the CPU, as far as that is known without a look at each step."""

from __future__ import annotations

import os
import re
import sys
import warnings
from typing import Any

from ..devices.probes import FALLBACK, switched_on

_SIMULATOR = "mps_trainer.simulator.session"
_WARNING = re.compile(r"The operator '([^']+)' is not currently supported on the MPS backend")


class FallbackWatch:
    """Listens from `begin` to `end`. Both are cheap, and nothing happens in between.

    The simulated device counts. torch on a Mac warns, through Python's warnings, of the first operator that falls
    back in a process and of no other (TORCH_WARN_ONCE in aten/src/ATen/mps/MPSFallback.mm), so a name is certain there
    and a list is not.
    """

    def __init__(self, device: str) -> None:
        self._on_mps = device == "mps"
        self._names: list[str] = []
        self._simulated: Any = None
        self._before: dict[str, Any] = {}
        self._shown: Any = None

    def begin(self) -> None:
        if not self._on_mps:
            return
        self._simulated = getattr(sys.modules.get(_SIMULATOR), "_current", None)
        if self._simulated is not None:
            self._before = self._simulated.counters()["operators"]
            return
        self._shown, warnings.showwarning = warnings.showwarning, self._show

    def end(self) -> dict[str, Any]:
        """Returns `text`, `operators` with name, calls and shapes (None: not counted), and `complete`."""
        if not self._on_mps:
            return {"text": "", "operators": [], "complete": True}
        if self._simulated is not None:
            return self._counted()
        if warnings.showwarning == self._show:  # if not, another was put in between, which calls this one
            warnings.showwarning = self._shown
        return self._warned_of()

    def _show(self, message: Any, category: Any, *details: Any, **more: Any) -> None:
        found = _WARNING.match(str(message))
        if found is not None and found[1] not in self._names:
            self._names.append(found[1])
        self._shown(message, category, *details, **more)

    def _counted(self) -> dict[str, Any]:
        now = self._simulated.counters()["operators"]
        operators, shapes = [], 0
        for name, (calls, kinds, fell_back) in now.items():
            before = self._before.get(name, (0, 0, False))
            shapes += kinds - before[1]
            if fell_back and calls > before[0]:
                operators.append({"name": name, "calls": calls - before[0], "shapes": kinds - before[1]})
        operators.sort(key=lambda operator: -operator["calls"])
        text = f"{'' if operators else 'None. '}The simulated device counts each call."
        return {"text": text, "operators": operators, "complete": True, "shapes": shapes}

    def _warned_of(self) -> dict[str, Any]:
        operators = [{"name": name, "calls": None, "shapes": None} for name in self._names]
        if operators:
            text = "torch names only the first operator of a process that falls back, so there may be more"
        elif switched_on(os.environ.get(FALLBACK)):
            text = (
                "Not known: torch warned of none during this run, but it warns once in a process, and of the first "
                "operator only"
            )
        else:
            text = (
                f"torch warned of none. {FALLBACK} is off, so that an operator without a kernel for mps is an error, "
                "except for the few that always go to the CPU"
            )
        return {"text": f"{text}. `mps-trainer check SCRIPT` lists them.", "operators": operators, "complete": False}
