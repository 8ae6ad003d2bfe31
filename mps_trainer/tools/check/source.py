"""Finds the Python line that called an operator."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
from dataclasses import dataclass

import numpy as np
import torch

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OWN = os.path.dirname(__file__) + os.sep
_TOOLS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_PACKAGE = os.path.dirname(os.path.dirname(_TOOLS)) + os.sep
# Frames of these do not explain anything: torch's own Python, numpy's, which asks for the values that it is given,
# this package's tracing, counting and watching of look-ups, decorators.
_SKIPPED = (
    _TORCH,
    _OWN,
    os.path.join(_TOOLS, "simulator") + os.sep,
    os.path.join(_PACKAGE, "data", "batch_checks.py"),
    os.path.dirname(np.__file__) + os.sep,
    str(contextlib.__file__),
    "<frozen ",
)


@dataclass(frozen=True)
class SourceLine:
    """A line of Python: its file, its number, counted from 1, and its text ("" where the file is gone)."""

    file: str
    line: int

    @property
    def text(self) -> str:
        return linecache.getline(self.file, self.line).strip()

    @property
    def library(self) -> str | None:
        """The installed package that the line belongs to; None for the user's own code."""
        if self.file.startswith(_PACKAGE):
            return "mps_trainer"
        parts = self.file.split(os.sep)
        for i in range(len(parts) - 2, -1, -1):
            if parts[i] in ("site-packages", "dist-packages"):
                return parts[i + 1].removesuffix(".py")
        return None

    def shows(self, text: str) -> bool:
        """Returns True if `text` is in the line or near it: Python names the first line of a condition, or another."""
        return any(text in linecache.getline(self.file, self.line + i) for i in range(-2, 5))

    def __str__(self) -> str:
        """Returns two parts of the path, which tell one `modeling.py` from another, and the line."""
        return f"{os.sep.join(self.file.split(os.sep)[-2:])}:{self.line}"


def current_line() -> SourceLine | None:
    """Returns the innermost running line outside torch, numpy and this package's tracing; None if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_SKIPPED):
            return SourceLine(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return None
