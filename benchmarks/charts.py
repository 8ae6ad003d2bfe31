"""Draws a chart for each benchmark: bars for figures, and lines for recorded curves."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

OURS, OTHERS = "#1f6feb", "#9aa4b2"


def draw(results: list[dict[str, Any]], folder: Path) -> dict[str, str]:
    """Writes `<name>.png` for each result with figures. Returns the file names by benchmark."""
    if importlib.util.find_spec("matplotlib") is None:
        print("No charts: matplotlib is not installed.", file=sys.stderr)
        return {}
    drawn = {}
    for result in results:
        if "skipped" in result:
            continue
        target = folder / f"{result['name']}.png"
        series = {name: row["series"] for name, row in result["rounds"][0].items() if "series" in row}
        figures = [figure for figure in result["figures"] if figure["chart"]]
        if series:
            lines(result, series, target)
        elif figures:
            bars(result, figures, target)
        else:
            continue
        drawn[result["name"]] = target.name
    return drawn


def bars(result: dict[str, Any], figures: list[dict[str, Any]], target: Path) -> None:
    """The median of each figure, with a line from the smallest to the largest round."""
    names = list(reversed(result["middles"]))
    figure, panels = _panels(len(figures), 1.2 + 0.4 * len(names))
    for panel, shown in zip(panels, figures, strict=True):
        key = shown["name"]
        measured = {name: [row[name][key] for row in result["rounds"] if key in row.get(name, {})] for name in names}
        middle = [result["middles"][name].get(key, 0) for name in names]
        below = [value - min(measured[name], default=value) for name, value in zip(names, middle, strict=True)]
        above = [max(measured[name], default=value) - value for name, value in zip(names, middle, strict=True)]
        colors = [OURS if name.split("-")[0] == "ours" else OTHERS for name in names]
        drawn = panel.barh(range(len(names)), middle, color=colors, xerr=[below, above], ecolor="#444", capsize=3)
        texts = [
            f"{value:.{shown['digits']}f}" if measured[name] else "–"
            for name, value in zip(names, middle, strict=True)
        ]
        panel.bar_label(drawn, labels=texts, padding=6)
        panel.set_xlim(0, 1.25 * max([a + b for a, b in zip(middle, above, strict=True)] + [1e-9]))
        panel.set_xlabel(shown["label"])
        panel.set_yticks(range(len(names)))
    panels[0].set_yticklabels([result["labels"][name] for name in names])
    for panel in panels[1:]:
        panel.set_yticklabels([])
    _save(figure, result, target)


def lines(result: dict[str, Any], series: dict[str, list[list[float]]], target: Path) -> None:
    """Draws the recorded values over the steps, in a panel for each because their sizes differ."""
    figure, panels = _panels(len(series), 3.0)
    for panel, (name, points) in zip(panels, series.items(), strict=True):
        panel.plot(*zip(*points, strict=True), color=OURS if name.split("-")[0] == "ours" else OTHERS)
        panel.set_ylim(0, 1.2 * max(size for _, size in points))
        panel.set_title(result["labels"][name], fontsize=8)
        panel.set_xlabel("step")
    panels[0].set_ylabel("MiB")
    _save(figure, result, target)


def _panels(count: int, height: float) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.0 + 3.2 * count, height), layout="constrained")
    panels = list(figure.subplots(1, count, squeeze=False)[0])
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
    return figure, panels


def _save(figure: Any, result: dict[str, Any], target: Path) -> None:
    figure.suptitle(result["title"] + (" (quick run)" if result["quick"] else ""), fontsize=10)
    figure.savefig(target, dpi=150)
