"""From a record to curves and tables."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest
from torch.utils.data import DataLoader

from mps_trainer import TrainingArguments
from mps_trainer.reports import curves, figures, results, summary
from mps_trainer.reports.curves import Chart, Curve
from mps_trainer.reports.description import data_of
from mps_trainer.reports.record import Event, RunRecord, thinned
from mps_trainer.reports.words import duration, number

SVG = "{http://www.w3.org/2000/svg}"


def titles(record):
    return [chart.title for chart in curves.charts(record)]


def test_what_was_logged_has_a_chart_and_nothing_else(record):
    assert titles(record) == ["Loss", "Metrics", "Learning rate", "Gradient norm", "Throughput", "Tokens", "Memory"]
    record.history = [entry for entry in record.history if "loss" in entry]
    record.sessions = []
    assert titles(record) == ["Loss", "Learning rate", "Gradient norm"]
    assert titles(RunRecord("empty", {})) == []


def test_the_losses_of_training_and_of_evaluations_share_a_chart(record):
    training, evaluation = curves.losses(record)
    assert (training.name, training.steps, training.values) == ("training", [1, 2, 3, 4], [0.9, 0.7, 0.5, 0.4])
    assert (evaluation.name, evaluation.steps, evaluation.values) == ("evaluation", [2, 4], [0.8, 0.6])


def test_losses_that_are_no_numbers_are_left_out(record):
    record.history[1]["loss"] = math.nan
    assert curves.losses(record)[0].steps == [1, 3, 4]


def test_metrics_of_another_scale_have_charts_of_their_own(record):
    for entry in record.history:
        if "eval_loss" in entry:
            entry |= {"eval_perplexity": 20.0, "eval_f1": 0.3}
    shares, other = curves.metric_charts(record)
    assert [curve.name for curve in shares.curves] == ["accuracy", "f1"]
    assert (other.title, other.curves[0].values) == ("perplexity", [20.0, 20.0])


def test_throughput_leaves_out_evaluations_and_what_lies_between_two_sessions(record):
    # 2 steps of 8 examples: in 2 seconds; then in 3 seconds, one of them evaluating
    assert curves.samples_per_second(record).values == [8.0, 8.0]
    assert curves.samples_per_second(record).steps == [2.0, 7.0]  # seconds on the training clock
    assert curves.tokens_per_second(record).values == [80.0, 80.0]


def test_a_short_stretch_at_the_end_is_no_rate(record):
    record.sessions[1].marks.append([6, 7.01, 19300.0, None, None, 2**30])
    assert curves.samples_per_second(record).values == [8.0, 8.0]
    record.sessions[1].marks = [[2, 4.0, 0.0, None, None, 1], [4, 4.1, 9.0, None, None, 1]]
    assert curves.samples_per_second(record).values == [8.0]
    record.sessions.pop(0)
    assert curves.samples_per_second(record).values == pytest.approx([160.0])  # all that there is


def test_a_device_that_does_not_tell_has_no_curve_of_memory(record):
    assert [curve.name for curve in curves.memory_curves(record) if curve] == ["process"]


def test_a_long_curve_keeps_its_spikes():
    values = [0.0] * 100_000
    values[54_321] = 9.0
    short = curves.thinned(Curve("loss", list(range(100_000)), values))
    assert len(short.steps) <= curves.SHOWN + 2
    assert max(short.values) == 9.0
    assert (short.steps[0], short.steps[-1]) == (0, 99_999)


def test_a_long_history_keeps_its_evaluations():
    history = [{"loss": 1.0, "step": step} for step in range(20_000)]
    history.insert(7, {"eval_loss": 1.0, "step": 6})
    short = thinned(history)
    assert len(short) <= 5003
    assert history[7] in short
    assert short[-1] == history[-1]


def test_losses_over_many_powers_of_ten_are_shown_on_a_logarithmic_axis(record):
    record.history[0]["loss"] = 900.0
    loss = next(chart for chart in curves.charts(record) if chart.key == "loss")
    assert loss.log
    assert {"1", "10", "100"} <= set(labels(figures.line_figure(loss, 4), "y"))


def series(figure):
    """The class, the number of points and the texts of each series of a figure."""
    root = ElementTree.fromstring(figure)
    found = {}
    for group in root.iter(f"{SVG}g"):
        if (kind := group.get("class") or "").startswith("series "):
            texts = [title.text for title in group.iter(f"{SVG}title")]
            lines = sum(path.get("class") == "line reactive nofill" for path in group.iter(f"{SVG}path"))
            before = found.get(kind, ([], 0))
            found[kind] = (before[0] + texts, before[1] + lines)
    return found


def labels(figure, axis):
    root = ElementTree.fromstring(figure)
    groups = [group for group in root.iter(f"{SVG}g") if f"axis {axis}" in (group.get("class") or "")]
    return [text.text for group in groups for text in group.iter(f"{SVG}text")]


def test_each_curve_of_a_chart_is_a_line_with_a_text_at_each_point(record):
    loss = curves.charts(record)[0]
    drawn = series(figures.line_figure(loss, 4, figures.breaks_of(record)))
    assert drawn["series curve color-0 dash-0"] == (
        ["training, step 1: 0.9", "training, step 2: 0.7", "training, step 3: 0.5", "training, step 4: 0.4"],
        1,
    )
    assert drawn["series curve color-1 dash-0"] == (["evaluation, step 2: 0.8", "evaluation, step 4: 0.6"], 1)
    assert drawn["series break soft"] == ([], 1)
    assert labels(figures.line_figure(loss, 4), "x") == ["0", "1", "2", "3", "4"]


def test_a_chart_of_many_long_curves_stays_small():
    many = [Curve(f"run {number}", list(range(5000)), [float(number)] * 5000, color=number) for number in range(40)]
    figure = figures.line_figure(Chart("x", "x", many), 5000)
    assert len(figure) < 500_000
    assert len(series(figure)) == 32  # eight colours in four dashes
    assert sum(lines for _, lines in series(figure).values()) == 40


def test_throughput_and_memory_are_drawn_over_time(record):
    record.sessions[0].marks.insert(1, [1, 1.0, 4800.0, None, None, 2**30])
    throughput, _, memory = (chart for chart in curves.charts(record) if chart.over_time)
    drawn = figures.line_figure(throughput, 4, figures.breaks_of(record))
    assert series(drawn)["series curve color-0 dash-0"][0] == [
        "1.0 s: 8 samples/s",
        "2.0 s: 8 samples/s",
        "7.0 s: 8 samples/s",
    ]
    assert labels(drawn, "x")[-1].endswith(" s")
    assert "process" in memory.curves[0].name
    assert memory.curves[0].steps == [0.0, 1.0, 2.0, 4.0, 7.0]


def test_padding_is_drawn_above_the_real_tokens(record):
    drawn = series(figures.padding_figure(record.data["padded"]))
    assert drawn["series color-0"][0] == ["50 real tokens", "100 real tokens"]
    assert drawn["series padding"][0] == ["14 padding tokens", "28 padding tokens"]


def test_the_time_line_has_a_lane_for_what_there_was(record):
    figure = figures.time_line(record)
    assert labels(figure, "y") == ["training", "evaluations", "checkpoints", "faults"]
    assert series(figure)["series faults"][0] == ["step 2 stop by SIGTERM"]
    record.events = [event for event in record.events if event.kind != "checkpoint"]
    assert labels(figures.time_line(record), "y") == ["training", "evaluations", "faults"]
    assert figures.time_line(RunRecord("no times", {})) is None


def test_the_headline_has_the_metrics_first(record):
    shown = [(tile.label, tile.value, tile.more) for tile in summary.tiles(record)]
    assert shown == [
        ("accuracy", "0.75", "best 0.75 at step 4"),
        ("evaluation loss", "0.6", ""),
        ("training loss", "0.4", "last logged; mean of the run 0.6"),
        ("training time", "8.0 s", "in 2 sessions"),
        ("throughput", "8.5", "samples/s of the whole run; median between logs 8"),
        ("peak memory", "2.0 GiB", "of the process, at logs"),
    ]


def test_a_run_that_has_not_ended_has_the_median_of_its_throughput(record):
    record.history.pop()
    assert summary.throughput(record) == (8.0, "samples/s, median between logs")
    record.sessions = []
    assert summary.throughput(record) is None


def test_a_run_that_logged_no_loss_shows_the_mean(record):
    record.history = [entry for entry in record.history if "loss" not in entry]
    assert summary.final_metrics(record)["mean training loss"] == 0.6
    assert "training loss" not in summary.final_metrics(record)


def test_one_evaluation_is_a_table_and_no_chart(record):
    assert results.evaluation_table(record).rows == []
    record.history = [entry for entry in record.history if "eval_loss" not in entry or entry["step"] == 4]
    rows = [("evaluation loss", "0.6", "4"), ("accuracy", "0.75", "4")]
    assert results.evaluation_table(record).rows == rows
    assert "Metrics" not in titles(record)
    assert [curve.name for curve in curves.charts(record)[0].curves] == ["training"]


@pytest.mark.parametrize(
    ("outcome", "word", "sentence"),
    [
        ({"kind": "finished"}, "finished", "4 of 4 steps in 8.0 s on simulated mps."),
        ({"kind": "stopped", "text": "by SIGTERM"}, "stopped", "Stopped by SIGTERM after 4 of 4 steps in 8.0 s on"),
        ({"kind": "failed", "text": "E: no"}, "failed", "After 4 of 4 steps in 8.0 s on simulated mps: E: no"),
        ({"kind": "running"}, "not ended", "4 of 4 steps in 8.0 s on simulated mps when this was written."),
        ({"kind": "unknown"}, "unknown end", "4 of 4 steps; run_record.json does not tell how the run ended."),
        ({}, "unknown end", "4 of 4 steps; run_record.json does not tell"),
    ],
)
def test_the_outcome_in_a_sentence(record, outcome, word, sentence):
    record.outcome = {"step": 4, "max_steps": 4, **outcome}
    badge, _, said = summary.outcome(record)
    assert badge == word
    assert said.startswith(sentence)


def test_padding_is_told_in_numbers(record):
    rows = dict(summary.shape_rows(record))
    assert rows["examples in an update"] == "8 (4 on the device, 2 accumulated)"
    assert rows["padded to"] == "8, 16"
    assert rows["padding"] == "22 % of all tokens; 1.28 padded per real token"
    assert summary.padding_table(record).rows[0] == ("8", "2", "64", "22 %")


def test_the_batch_is_the_one_that_is_trained_where_a_checkpoint_has_another_than_the_arguments(record):
    args = TrainingArguments("out", per_device_train_batch_size=9, gradient_accumulation_steps=2, report_to="none")
    record.data = data_of(args, DataLoader([1] * 20), batch=12)
    assert dict(summary.shape_rows(record))["examples in an update"] == "12 (6 on the device, 2 accumulated)"


def test_lengths_have_a_median_and_a_95th_percentile(record):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([{"input_ids": [1] * length} for length in range(1, 101)])
    record.data = data_of(TrainingArguments("out", report_to="none"), DataLoader(rows), batch=8)
    text = "shortest 1, median 50, 95th percentile 95, longest 100, mean 50"
    assert dict(summary.shape_rows(record))["tokens of an example"] == text


def test_padding_without_buckets_follows_from_what_was_counted(record):
    record.data.pop("padded")
    rows = dict(summary.shape_rows(record))
    assert rows["tokens of an example in a batch"] == "10 with padding, on average"
    assert rows["padding"] == "6 % of all tokens; 1.06 padded per real token"
    record.model = {}
    assert dict(summary.shape_rows(record))["padding"].startswith("not known")


def test_what_fell_back_is_a_table(record):
    sentence, table = summary.fallback_table(record)
    assert (sentence, table.rows) == ("Counted.", [("aten::cumsum", "3", "1")])
    record.fallback = {}
    assert summary.fallback_table(record)[0] == ""


def test_warnings_and_faults_are_told_and_checkpoints_are_counted(record):
    record.events.append(Event("warning", 3, 5.0, "The loss was nan at step 3."))
    said = [row[2] for row in summary.event_table(record).rows]
    assert said[:2] == ["began", "stopped by SIGTERM"]
    assert said[2:] == ["resumed from out/checkpoint-2", "ended", "warning: The loss was nan at step 3."]
    assert summary.counts_of_events(record) == "1 checkpoint and 2 evaluations. The best checkpoint is checkpoint-4."


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.123456, "0.1235"), (12345.6, "12,346"), (3.0, "3"), (2e-5, "2e-05"), (math.nan, "nan"), (math.inf, "inf")],
)
def test_numbers(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.96, "10.0 s"), (59.4, "59 s"), (75, "1 min 15 s"), (3700, "1 h 1 min"), (200_000, "2 d 7 h")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text
