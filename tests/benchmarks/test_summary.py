"""README's table: the figures of the committed results, each in the column of its peer."""

from benchmarks import summary
from benchmarks.worker import ROOT

STEP = "milliseconds_per_step"
OVERHEAD = {
    "name": "overhead",
    "rounds": [{"bare": {STEP: 1.0}, "ours": {STEP: 0.5}}, {"bare": {STEP: 2.0}, "ours": {STEP: 1.2}}],
    "middles": {},
}
SIMULATED = {"name": "simulated", "rounds": [{}], "middles": {"ours": {"blocking_reads": 0.0}, "bare": {}}}


def test_a_figure_stands_under_its_peer_and_what_was_not_measured_is_a_dash():
    lines = summary.table({"overhead": OVERHEAD, "simulated": SIMULATED})
    assert lines[0] == "| | bare loop | transformers | Accelerate | Lightning | mps_trainer |"
    assert lines[2].endswith(" | 1.00 | – | – | – | 0.55 |")  # each ratio within its round
    assert lines[3].endswith(" | – | – | – | – | 0 |")


def test_a_benchmark_without_a_result_has_no_row():
    assert len(summary.table({"overhead": OVERHEAD})) == 3
    assert len(summary.table({"overhead": {"name": "overhead", "skipped": "no device"}})) == 2


def test_readme_shows_the_committed_results():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = text.split("<!-- benchmarks -->\n")[1].split("\n\n")[0]
    results = summary.read()
    assert shown.splitlines() == summary.table(results)
    assert {"overhead", "simulated", "mrpc", "startup"} <= results.keys()
    assert not any(result["quick"] for result in results.values())
    for result in results.values():
        assert result["date"].partition("T")[0] in text
