"""The summary tables: the figures of the committed results, each in the column of its peer."""

import copy

import pytest

from benchmarks import report, summary
from benchmarks.worker import ROOT

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
