"""Compares a quotation of the page on torch.compile with torch."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_torchs_generator_of_metal_code_still_calls_itself_a_prototype():
    (quoted,) = re.findall(r'still begins with "(.*?)"', (DOCS / "compile.md").read_text(encoding="utf-8"))
    inductor = importlib.util.find_spec("torch._inductor").origin
    lines = (Path(inductor).parent / "codegen" / "mps.py").read_text(encoding="utf-8").splitlines()
    assert quoted in "\n".join(lines[:3])
