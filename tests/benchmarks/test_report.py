"""The page of results, from results made by hand."""

import copy

import pytest

from benchmarks import charts, report

RESULT = {
    **{"name": "overhead", "title": "Overhead", "quick": False, "date": "2026-01-02T03:04:05+00:00"},
    **{"command": "python -m benchmarks overhead", "versions": {"torch": "2.13.0"}, "baseline": "bare"},
    "machine": {"processor": "Chip", "cores": 8, "threads": 4, "memory_gib": 16.0, "system": "Linux", "load": 0.1},
    "figures": [{"name": "ms", "label": "ms a step", "digits": 2, "ratio": True, "chart": True, "mean": False}],
    "labels": {"bare": "bare loop", "ours": "mps_trainer"},
    "left_out": {"lightning": "lightning not installed", "accelerate": "failed: killed\nTraceback"},
    "rounds": [{"bare": {"ms": 1.0}, "ours": {"ms": 0.7}}, {"bare": {"ms": 1.1}, "ours": {"ms": 0.8}}],
    "middles": {"bare": {"ms": 1.05}, "ours": {"ms": 0.75}},
    "ratios": {"bare": {"ms": 1.0}, "ours": {"ms": 0.7136}},
    "learned": {"bare": [{"loss": 0.5}] * 2, "ours": [{"loss": 0.5}] * 2},
    "targets": [
        {"entry": "ours", "figure": "ms", "of_ratio": True, "at_most": 0.75, "reached": 0.7136, "met": True},
        {"entry": "ours", "figure": "ms", "of_ratio": False, "at_most": 0.5, "reached": None, "met": None},
    ],
}


def test_the_table_has_figures_ratios_and_what_was_learned():
    assert report.table(RESULT) == [
        "| | ms a step | ms a step, ratio to bare loop | learned: loss |",
        "| --- | ---: | ---: | ---: |",
        "| bare loop | 1.05 | 1.00 | 0.5000 |",
        "| mps_trainer | 0.75 | 0.71 | 0.5000 |",
    ]


def test_a_section_says_what_was_aimed_at_who_is_absent_and_where_it_ran():
    text = report.section(RESULT, "overhead.png")
    assert "- Target for mps_trainer: ms a step, ratio at most 0.75: reached (0.71)." in text
    assert "- Target for mps_trainer: ms a step at most 0.5: not measured." in text
    assert "- Left out: lightning: lightning not installed\n" in text
    assert "- Left out: accelerate: failed: killed\n" in text
    assert "Traceback" not in text
    assert "![Overhead](overhead.png)" in text
    assert "2026-01-02T03:04:05+00:00, 2 rounds, `python -m benchmarks overhead`. Chip, 8 cores, 4 threads" in text
    assert "quick" not in text


def test_what_was_not_measured_is_a_dash_and_not_a_zero():
    result = copy.deepcopy(RESULT)
    del result["middles"]["ours"]["ms"], result["ratios"]["ours"]
    assert report.table(result)[-1] == "| mps_trainer | – | – | 0.5000 |"


def test_charts_are_drawn_for_bars_and_for_lines(tmp_path):
    pytest.importorskip("matplotlib")
    series = copy.deepcopy(RESULT)
    series["name"] = "memory"
    for row in series["rounds"][0].values():
        row["series"] = [[0, 1.0], [50, 1.1]]
    skipped = {"name": "mrpc", "title": "MRPC", "quick": False, "skipped": "There is no data."}
    drawn = charts.draw([RESULT, series, skipped], tmp_path)
    assert drawn == {"overhead": "overhead.png", "memory": "memory.png"}
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in drawn.values())
