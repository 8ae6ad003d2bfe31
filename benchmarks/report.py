"""The page of results: a table for each benchmark, from the JSON files alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HEAD = """# Results

Written by `python -m benchmarks` from the JSON files beside it, which have every round. What the figures mean is on
`docs/speed.md`. Figures are medians over the rounds, unless they say mean; a ratio is the median of the ratios
within a round; what was learned is the last round's.
"""


def read(folder: Path) -> list[dict[str, Any]]:
    """The results in `folder`, by name."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def page(results: list[dict[str, Any]], pictures: dict[str, str], summary: str = "") -> str:
    """All results as Markdown, after the summary; `pictures` are names of files, by the benchmark's name."""
    head = [HEAD, *([summary] if summary else [])]
    return "\n".join([*head, *(section(result, pictures.get(result["name"])) for result in results)])


def section(result: dict[str, Any], picture: str | None = None) -> str:
    """One result: its table, what was aimed at, who did not take part, and where it ran."""
    lines = [f"## {result['title']}", ""]
    if "skipped" in result:
        return "\n".join([*lines, f"Skipped: {result['skipped']}", ""])
    if result["quick"]:
        lines += ["**A quick run, which shows that the benchmark works: no figure here is a measurement.**", ""]
    lines += [*table(result), "", *_targets(result), *_absent(result)]
    if (note := result.get("note")) is not None:  # of whoever measured
        lines += [f"- Note: {note}", ""]
    if picture is not None:
        lines += [f"![{result['title']}]({picture})", ""]
    return "\n".join([*lines, where(result), ""])


def table(result: dict[str, Any]) -> list[str]:
    """A row for each that was measured; a column for each figure, ratio, and thing that it learned."""
    figures = [figure for figure in result["figures"] if _any_has(result["middles"], figure["name"])]
    compared = [figure for figure in figures if _any_has(result["ratios"], figure["name"])]
    learned = list(dict.fromkeys(key for rounds in result["learned"].values() for key in (rounds[-1] or {})))
    over = result["labels"].get(result["baseline"], "")
    heads = [figure["label"] for figure in figures]
    heads += [f"{figure['label']}, ratio to {over}" for figure in compared] + [f"learned: {key}" for key in learned]
    rows = ["| | " + " | ".join(heads) + " |", "| --- |" + " ---: |" * len(heads)]
    for name in result["middles"]:
        cells = [number(result["middles"][name].get(figure["name"]), figure["digits"]) for figure in figures]
        cells += [number(result["ratios"].get(name, {}).get(figure["name"]), 2) for figure in compared]
        cells += [number((result["learned"][name][-1] or {}).get(key), 4) for key in learned]
        rows.append(f"| {result['labels'][name]} | " + " | ".join(cells) + " |")
    return rows


def number(value: float | None, digits: int) -> str:
    """As a table shows it; what was not measured is a dash."""
    if value is None:
        return "–"
    return str(value) if isinstance(value, int) else f"{value:.{digits}f}"


def where(result: dict[str, Any]) -> str:
    """The line that says when, with what and on which machine."""
    machine = result["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    rounds = f"{len(result['rounds'])} round" + ("s" if len(result["rounds"]) > 1 else "")
    return (
        f"{result['date']}, {rounds}, `{result['command']}`. {machine['processor']}, {machine['cores']} cores, "
        f"{machine['threads']} threads, {machine['memory_gib']} GiB, {machine['system']}, "
        f"load {machine['load']:.1f} before. {packages}."
    )


def _any_has(rows: dict[str, dict[str, float]], name: str) -> bool:
    return any(name in row for row in rows.values())


def _targets(result: dict[str, Any]) -> list[str]:
    labels = {figure["name"]: figure["label"] for figure in result["figures"]}
    lines = []
    for target in result["targets"]:
        what = f"{labels[target['figure']]}{', ratio' if target['of_ratio'] else ''}"
        outcome = {None: "not measured", True: "reached", False: "missed"}[target["met"]]
        value = "" if target["reached"] is None else f" ({number(target['reached'], 2)})"
        who = result["labels"].get(target["entry"], target["entry"])
        lines.append(f"- Target for {who}: {what} at most {target['at_most']}: {outcome}{value}.")
    return [*lines, ""] if lines else []


def _absent(result: dict[str, Any]) -> list[str]:
    lines = [f"- Left out: {name}: {reason.splitlines()[0]}" for name, reason in result["left_out"].items()]
    return [*lines, ""] if lines else []
