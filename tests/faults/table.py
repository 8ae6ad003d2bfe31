"""README's table of runs that were killed: `python -m tests.faults.table` writes it from the results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
README = Path(__file__).parents[2] / "README.md"
MARK = "<!-- reliability -->\n"
LIBRARIES = ("mps_trainer", "transformers")


def table() -> str:
    """The table in Markdown, from the files that kill.py wrote."""
    results = [json.loads((RESULTS / f"{library}.json").read_text(encoding="utf-8")) for library in LIBRARIES]
    rows = {
        "runs": [result["trials"] for result in results],
        "kills, of them in a save": [f"{result['kills']}, {result['in_a_save']}" for result in results],
        "ended equal in every bit": [_count(result, "identical") for result in results],
        "could not be resumed": [_count(result, "could not resume") for result in results],
        "ended as something other": [_others(result) for result in results],
    }
    lines = [f"| | {' | '.join(LIBRARIES)} |", "| --- |" + " ---: |" * len(LIBRARIES)]
    lines += [f"| {name} | {' | '.join(map(str, values))} |" for name, values in rows.items()]
    return "\n".join(lines) + "\n"


def _count(result: dict[str, Any], verdict: str) -> int:
    return result["verdicts"].get(verdict, 0)


def _others(result: dict[str, Any]) -> int:
    return result["trials"] - _count(result, "identical") - _count(result, "could not resume")


def replaced(text: str) -> str:
    """README with the table in its place."""
    before, _, after = text.partition(MARK)
    return before + MARK + table() + "\n" + after.partition("\n\n")[2]


if __name__ == "__main__":
    README.write_text(replaced(README.read_text(encoding="utf-8")), encoding="utf-8")
