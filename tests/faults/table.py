"""Writes the table of docs/checkpoints.md from the results: `python -m tests.faults.table`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"
MARK = "<!-- reliability -->\n"
LIBRARIES = ("mps_trainer", "transformers")


def result(name: str) -> dict[str, Any]:
    """Returns the figures that kill.py wrote as `name`."""
    figures: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return figures


def table() -> str:
    """Returns the table in Markdown, from the files that kill.py wrote."""
    results = [result(library) for library in LIBRARIES]
    rows = {
        "runs": [result["trials"] for result in results],
        "kills": [result["kills"] for result in results],
        "kills during a save": [result["in_a_save"] for result in results],
        "bit-identical to an uninterrupted run": [_count(result, "identical") for result in results],
        "could not resume": [_count(result, "could not resume") for result in results],
        "ended with a different result": [_others(result) for result in results],
    }
    lines = [f"| | {' | '.join(LIBRARIES)} |", "| --- |" + " ---: |" * len(LIBRARIES)]
    lines += [f"| {name} | {' | '.join(map(str, values))} |" for name, values in rows.items()]
    return "\n".join(lines) + "\n"


def _count(result: dict[str, Any], verdict: str) -> int:
    return result["verdicts"].get(verdict, 0)


def _others(result: dict[str, Any]) -> int:
    return result["trials"] - _count(result, "identical") - _count(result, "could not resume")


def replaced(text: str) -> str:
    """Returns the page with the table in its place."""
    before, _, after = text.partition(MARK)
    return before + MARK + table() + "\n" + after.partition("\n\n")[2]


if __name__ == "__main__":
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
