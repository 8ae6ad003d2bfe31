"""The order of the measurements, and the figures over all rounds."""

import pytest

from benchmarks.benchmark import Benchmark, Entry, Figure, Target
from benchmarks.rounds import alternate, judged, middles, ratios
from benchmarks.worker import MeasurementFailedError

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


def test_figures_are_medians_or_means_as_they_say():
    assert middles(ROUNDS, FIGURES)["ours"] == {"time": 1.2, "score": 2}


def test_a_ratio_is_taken_within_a_round():
    found = ratios(ROUNDS, FIGURES, "bare")
    assert found["ours"] == {"time": pytest.approx(0.6)}  # of 0.5, 0.8 and 0.6
    assert found["bare"] == {"time": 1}


def test_without_a_baseline_there_is_no_ratio():
    assert ratios([{"ours": {"time": 1.0}}], FIGURES, "bare") == {}
    assert ratios([{"ours": {"time": 1.0}, "bare": {"time": 0}}], FIGURES, "bare") == {}


def test_targets_are_met_missed_or_not_measured():
    targets = (Target("ours", "time", 0.6, of_ratio=True), Target("ours", "score", 1), Target("absent", "score", 1))
    benchmark = Benchmark("", FIGURES, lambda options: None, 1, targets=targets)
    reached = judged(benchmark, middles(ROUNDS, FIGURES), {"ours": {"time": 0.6}})
    assert [target["met"] for target in reached] == [True, False, None]
    assert [target["reached"] for target in reached] == [0.6, 2, None]
