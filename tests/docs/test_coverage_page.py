"""The table on the page about coverage is the one that its step gives."""

from __future__ import annotations

import torch

from .pages import ROOT, all_blocks


def test_the_table_is_that_of_the_step_above_it():
    (shown,) = all_blocks("text", "report")
    blocks = [block for block in all_blocks("python") if block.page == shown.page]
    (step,) = [block for block in blocks if "multi_margin_loss" in block.text]
    names: dict = {}
    exec(compile("\n" * step.line + step.text, ROOT / step.page, "exec"), names)
    table = str(names["report"]).replace(torch.__version__, torch.__version__.partition("+")[0])
    expected = shown.text.replace("2.15.0", torch.__version__.partition("+")[0])
    assert table.startswith(expected)
