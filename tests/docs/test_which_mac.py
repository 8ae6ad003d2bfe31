"""The table of docs/which-mac.md is the one that `python -m benchmarks.fit` writes."""

import re

from benchmarks import fit

TABLE = fit.PAGE.read_text(encoding="utf-8").split(fit.BEGIN)[1].split(fit.END)[0]
ROWS = dict(re.findall(r"^\| ([^|]+) \| (.*) \|$", TABLE, re.MULTILINE))


def test_table_has_each_model_and_way():
    assert "| | " + " | ".join(fit.COLUMNS) + " |" in TABLE
    assert [name for name in ROWS if name != "---"] == list(fit.ROWS)
    for name, ways in fit.WAYS.items():
        cells = dict(zip(fit.COLUMNS, ROWS[name].split(" | "), strict=True))
        assert {way for way, cell in cells.items() if cell != "–"} == set(ways)


def test_cell_is_computed_anew():
    name = next(iter(fit.ROWS))
    assert fit.cell(name, fit.FULL) == ROWS[name].split(" | ")[0]
