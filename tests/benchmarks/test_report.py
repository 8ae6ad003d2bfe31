"""The order of the measurements, the figures over all rounds, and the page and tables of results."""

import copy

import pytest

from benchmarks import charts, report, summary
from benchmarks.benchmark import Benchmark, Entry, Figure, Target
from benchmarks.rounds import alternate, judged, middles, ratios
from benchmarks.worker import ROOT, MeasurementFailedError

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


def test_a_section_says_what_was_aimed_at_who_is_absent_and_where_it_ran():
    result = copy.deepcopy(RESULT)
    del result["middles"]["ours"]["ms"], result["ratios"]["ours"]
    text = report.section(result, "overhead.png")
    assert "| bare loop | 1.05 | 1.00 | 0.5000 |\n| mps_trainer | – | – | 0.5000 |\n" in text  # it is no zero
    assert "- Target for mps_trainer: ms a step, ratio at most 0.75: reached (0.71)." in text
    assert "- Target for mps_trainer: ms a step at most 0.5: not measured." in text
    assert "- Left out: lightning: lightning not installed\n" in text
    assert "- Left out: accelerate: failed: killed\n" in text
    assert "Traceback" not in text
    assert "2026-01-02T03:04:05+00:00, 2 rounds, `python -m benchmarks overhead`. Chip, 8 cores, 4 threads" in text
    assert "quick" not in text


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


FIGURES = (Figure("time", "time", ratio=True), Figure("score", "score", mean=True))
ROUNDS = [
    {"bare": {"time": 1.0, "score": 0}, "ours": {"time": 0.5, "score": 1}},
    {"bare": {"time": 10.0, "score": 0}, "ours": {"time": 8.0, "score": 1}},  # the machine was busy
    {"bare": {"time": 2.0, "score": 0}, "ours": {"time": 1.2, "score": 4}},
]


def entries(calls, failing=()):
    def entry(name):
        def measure(round_):
            calls.append(name)
            if name in failing:
                raise MeasurementFailedError("no memory")
            return {"round": round_}

        return Entry(name, measure)

    return {name: entry(name) for name in ("a", "b", "c")}


def test_each_is_measured_once_in_a_round_and_another_one_begins():
    calls = []
    rounds, failed = alternate(entries(calls), 3)
    assert "".join(calls) == "abcbcacab"
    assert [list(round_) for round_ in rounds] == [["a", "b", "c"]] * 3
    assert [round_["a"] for round_ in rounds] == [{"round": 0}, {"round": 1}, {"round": 2}]
    assert failed == {}


def test_one_that_fails_is_named_and_the_others_go_on():
    calls = []
    rounds, failed = alternate(entries(calls, failing="b"), 2)
    assert failed == {"b": "failed: no memory"}
    assert "".join(calls) == "abcca"
    assert [list(round_) for round_ in rounds] == [["a", "c"]] * 2


def test_figures_are_medians_or_means_as_they_say_and_a_ratio_is_taken_within_a_round():
    assert middles(ROUNDS, FIGURES)["ours"] == {"time": 1.2, "score": 2}
    found = ratios(ROUNDS, FIGURES, "bare")
    assert found["ours"] == {"time": pytest.approx(0.6)}  # of 0.5, 0.8 and 0.6
    assert found["bare"] == {"time": 1}
    # without a baseline there is none
    assert ratios([{"ours": {"time": 1.0}}], FIGURES, "bare") == {}
    assert ratios([{"ours": {"time": 1.0}, "bare": {"time": 0}}], FIGURES, "bare") == {}


def test_targets_are_met_missed_or_not_measured():
    targets = (Target("ours", "time", 0.6, of_ratio=True), Target("ours", "score", 1), Target("absent", "score", 1))
    benchmark = Benchmark("", FIGURES, lambda options: None, 1, targets=targets)
    reached = judged(benchmark, middles(ROUNDS, FIGURES), {"ours": {"time": 0.6}})
    assert [target["met"] for target in reached] == [True, False, None]
    assert [target["reached"] for target in reached] == [0.6, 2, None]


STEP = "milliseconds_per_step"
OVERHEAD = {
    "date": "2026-01-02T03:04:05+00:00",
    "machine": {"processor": "Chip", "cores": 8},
    "rounds": [{"bare": {STEP: 1.0}, "ours": {STEP: 0.5}}, {"bare": {STEP: 2.0}, "ours": {STEP: 1.2}}],
}
MRPC = {"date": "2026-01-04T03:04:05", "machine": {"processor": "Other", "cores": 2}, "rounds": [{}]}


@pytest.mark.parametrize("change", [{"skipped": "no device"}, {"quick": True}])
def test_the_summary_has_a_row_for_what_was_measured(change):
    row, *notes = summary.block({"overhead": OVERHEAD}).splitlines()[3:]
    assert row.endswith(" | 1.00 | – | – | – | 0.55 |")  # each ratio within its round
    assert len(notes) == 3
    assert summary.block({"overhead": {**OVERHEAD, **change}}) == ""


def test_the_notes_name_each_machine_and_what_the_accuracies_show():
    results = {"overhead": OVERHEAD, "mrpc": MRPC}
    assert summary.by_machine(results) == (
        "On Chip with 8 cores: `overhead` (2026-01-02, 2 rounds). On Other with 2 cores: `mrpc` (2026-01-04, 1 round)."
    )
    assert summary.where(results).startswith(
        "Measured on Chip with 8 cores and Other with 2 cores, 2026-01-02 to 2026-01-04, in 1 to 2 rounds "
    )
    said = []
    for theirs in (0.72, 0.80):
        rounds = [
            {"ours": {"dev_accuracy": 0.70 + more}, "transformers": {"dev_accuracy": theirs + more}}
            for more in (0.0, 0.04)
        ]
        said.append(summary.of_accuracies({"rounds": rounds}))
    assert ["no difference is shown" in sentence for sentence in said] == [True, False]


@pytest.mark.parametrize(("page", "short"), summary.PAGES.items())
def test_a_page_shows_the_committed_results(page, short):
    text = (ROOT / page).read_text(encoding="utf-8")
    results = summary.read()
    assert summary.replaced(text, summary.block(results, short)) == text
    assert {"overhead", "simulated", "mrpc", "startup", "learning"} <= results.keys()
    assert not any(result["quick"] for result in results.values())


def test_the_page_of_results_is_the_one_that_the_benchmarks_write():
    results = report.read(summary.RESULTS)
    pictures = {path.stem: path.name for path in summary.RESULTS.glob("*.png")}
    page = report.page(results, pictures, summary.block(summary.read()))
    assert (summary.RESULTS / "README.md").read_text(encoding="utf-8") == page
