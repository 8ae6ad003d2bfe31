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


def test_the_table_has_figures_ratios_and_what_was_learned():
    assert report.table(RESULT) == [
        "| | ms a step | ms a step, ratio to bare loop | learned: loss |",
        "| --- | ---: | ---: | ---: |",
        "| bare loop | 1.05 | 1.00 | 0.5000 |",
        "| mps_trainer | 0.75 | 0.71 | 0.5000 |",
    ]
    # what was not measured is a dash, and not a zero
    result = copy.deepcopy(RESULT)
    del result["middles"]["ours"]["ms"], result["ratios"]["ours"]
    assert report.table(result)[-1] == "| mps_trainer | – | – | 0.5000 |"


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


# The order of the measurements, and the figures over all rounds


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


# The summary tables, each figure in the column of its peer


STEP, SECONDS, PROCESSOR = "milliseconds_per_step", "seconds", "training_processor_seconds"
MACHINE = {"processor": "Chip", "cores": 8}
OVERHEAD = {
    **{"name": "overhead", "date": "2026-01-02T03:04:05+00:00", "machine": MACHINE, "middles": {}},
    "rounds": [{"bare": {STEP: 1.0}, "ours": {STEP: 0.5}}, {"bare": {STEP: 2.0}, "ours": {STEP: 1.2}}],
}
SIMULATED = {
    **{"name": "simulated", "date": "2026-01-03T03:04:05+00:00", "machine": MACHINE, "rounds": [{}]},
    "middles": {"ours": {"blocking_reads": 0.0}, "bare": {}},
}
MRPC = {
    **{"name": "mrpc", "date": "2026-01-04T03:04:05+00:00", "machine": {"processor": "Other", "cores": 2}},
    "settings": {"arguments": ["--num_train_epochs", "3"]},
    "rounds": [{"ours": {SECONDS: 6.0, PROCESSOR: 3.0}, "transformers-dynamic": {SECONDS: 8.0, PROCESSOR: 6.0}}],
    "middles": {},
}


def learning(*pairs: tuple[float, float]) -> summary.Result:
    rounds = [{"ours": {"dev_accuracy": ours}, "transformers": {"dev_accuracy": theirs}} for ours, theirs in pairs]
    return {**MRPC, "name": "learning", "rounds": rounds}


def lines_of(results: dict[str, summary.Result], short: bool = False) -> list[str]:
    """The table without its markers, and the notes below it."""
    lines = summary.block(results, short).splitlines()
    assert lines[0] + "\n" == summary.BEGIN
    assert lines[-1] + "\n" == summary.END
    return lines[1:-1]


def test_a_figure_stands_under_its_peer_and_what_was_not_measured_is_a_dash():
    lines = lines_of({"overhead": OVERHEAD, "simulated": SIMULATED})
    assert lines[0] == "| | bare loop | transformers | Accelerate | Lightning | mps_trainer |"
    assert lines[2].endswith(" | 1.00 | – | – | – | 0.55 |")  # each ratio within its round
    assert lines[3].endswith(" | – | – | – | – | 0 |")


@pytest.mark.parametrize("change", [{"skipped": "no device"}, {"quick": True}])
def test_a_benchmark_that_was_not_measured_has_no_row(change):
    assert len(lines_of({"overhead": OVERHEAD})) == 5
    assert summary.block({"overhead": {**OVERHEAD, **change}}) == ""


def test_the_short_table_has_the_import_alone_and_the_fused_bare_loop():
    fused = copy.deepcopy(OVERHEAD)
    for round_ in fused["rounds"]:
        round_["bare-fused"] = {STEP: round_["bare"][STEP] / 2}
    changed = copy.deepcopy(MRPC)
    changed["rounds"][0]["import"] = {PROCESSOR: 4.5}
    lines = lines_of({"overhead": fused, "mrpc": changed}, short=True)
    assert lines[0] == "| | bare loop, fused AdamW | transformers | mps_trainer |"
    assert lines[2] == "| Trainer overhead, a step of one linear layer (bare loop = 1) | 1.00 | – | 1.10 |"
    assert lines[3] == (
        "| MRPC, 3 epochs, processor time of training (transformers = 1): the import changed | – | 1.00 | 0.75 |"
    )


def test_accuracies_come_with_their_spread_and_what_it_shows():
    within = lines_of({"learning": learning((0.70, 0.72), (0.74, 0.76))})
    assert within[2] == (
        "| MRPC dev accuracy, 3 epochs in bfloat16, mean ± standard deviation of 2 seeds "
        "| – | 0.740 ± 0.028 | – | – | 0.720 ± 0.028 |"
    )
    assert "no difference is shown" in " ".join(within[3:])
    beyond = lines_of({"learning": learning((0.70, 0.80), (0.71, 0.81))})
    assert "no difference" not in " ".join(beyond)
    assert "more than the smaller standard deviation" in " ".join(beyond)


def test_the_notes_name_each_machine_with_what_ran_on_it():
    results = {"overhead": OVERHEAD, "simulated": SIMULATED, "mrpc": MRPC}
    lines = lines_of(results)
    assert " ".join(lines[lines.index("") + 1 :]) == (
        "On Chip with 8 cores: `overhead` (2026-01-02, 2 rounds), `simulated` (2026-01-03, 1 round). "
        "On Other with 2 cores: `mrpc` (2026-01-04, 1 round)."
    )
    fused = copy.deepcopy(OVERHEAD)
    for round_ in fused["rounds"]:
        round_["bare-fused"] = round_["bare"]
    changed = copy.deepcopy(MRPC)
    changed["rounds"][0]["import"] = {PROCESSOR: 4.5}
    lines = lines_of({**results, "overhead": fused, "mrpc": changed}, short=True)
    assert " ".join(lines[lines.index("") + 1 :]) == (
        "Measured on Chip with 8 cores and Other with 2 cores, 2026-01-02 to 2026-01-04, in 1 to 2 rounds "
        "([each](benchmarks/results/README.md))."
    )


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
