"""The order of the measurements, the figures over all rounds, and the page and tables of results."""

import pytest

from benchmarks import charts, report, summary
from benchmarks.benchmark import Benchmark, Entry, Figure, Target
from benchmarks.rounds import alternate, judged, middles, ratios
from benchmarks.worker import ROOT, MeasurementFailedError


def test_charts_are_drawn_for_bars_and_for_lines(tmp_path):
    pytest.importorskip("matplotlib")
    results = summary.read()
    skipped = {"name": "mrpc", "title": "MRPC", "quick": False, "skipped": "There is no data."}
    drawn = charts.draw([results["overhead"], results["memory"], skipped], tmp_path)
    assert drawn == {"overhead": "overhead.png", "memory": "memory.png"}
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in drawn.values())


FIGURES = (Figure("time", "time", ratio=True), Figure("score", "score", mean=True))
ROUNDS = [
    {"bare": {"time": 1.0, "score": 0}, "ours": {"time": 0.5, "score": 1}},
    {"bare": {"time": 10.0, "score": 0}, "ours": {"time": 8.0, "score": 1}},  # the machine was busy
    {"bare": {"time": 2.0, "score": 0}, "ours": {"time": 1.2, "score": 4}},
]


def test_each_is_measured_once_in_a_round_another_one_begins_and_one_that_fails_is_left_out():
    calls = []

    def entry(name):
        def measure(round_):
            calls.append(name)
            if (name, round_) == ("b", 1):
                raise MeasurementFailedError("no memory")
            return {"round": round_}

        return Entry(name, measure)

    rounds, failed = alternate({name: entry(name) for name in "abc"}, 3)
    assert "".join(calls) == "abcbcaca"
    assert failed == {"b": "failed: no memory"}
    assert ["".join(round_) for round_ in rounds] == ["abc", "ac", "ac"]
    assert rounds[1]["a"] == {"round": 1}


def test_figures_are_medians_or_means_as_they_say_and_a_ratio_is_taken_within_a_round():
    assert middles(ROUNDS, FIGURES)["ours"] == {"time": 1.2, "score": 2}
    found = ratios(ROUNDS, FIGURES, "bare")
    assert found["ours"] == {"time": pytest.approx(0.6)}  # the others are 0.5 and 0.8
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


def test_the_notes_name_each_machine_and_what_the_accuracies_show():
    results = summary.read()
    results["mrpc"]["machine"] = {"processor": "Other", "cores": 2}
    assert "On Other with 2 cores: `mrpc` (" in summary.by_machine(results)
    assert " and Other with 2 cores with torch " in summary.where(results)
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


@pytest.mark.parametrize("name", summary.TABLES)
def test_a_page_shows_the_committed_results_of_a_benchmark(name):
    text = (ROOT / summary.TABLES[name].page).read_text(encoding="utf-8")
    made = summary.table_of(name, summary.read())
    assert summary.replaced(text, made, *summary.markers(name)) == text
    assert summary.NOT_MEASURED not in made.replace(summary.by_machine(summary.read()), "")


def test_the_page_of_results_is_the_one_that_the_benchmarks_write():
    results = report.read(summary.RESULTS)
    pictures = {path.stem: path.name for path in summary.RESULTS.glob("*.png")}
    page = report.page(results, pictures, summary.block(summary.read()))
    assert (summary.RESULTS / "README.md").read_text(encoding="utf-8") == page
