"""The curves of a record, and the charts that are drawn of them."""

import math
from xml.etree import ElementTree

import pytest

from mps_trainer.reports import charts, curves
from mps_trainer.reports.curves import Chart, Curve
from mps_trainer.reports.record import OPERATIONS, STEP, Event, RunRecord, Session

SVG = "{http://www.w3.org/2000/svg}"


def titles(record):
    return [chart.title for chart in curves.charts(record)]


def test_charts_are_those_of_what_was_logged(record):
    curves_of_steps, curves_of_time = titles(record)[:4], titles(record)[4:]
    assert curves_of_steps == ["Loss", "Metrics", "Learning rate", "Gradient norm"]
    assert curves_of_time == ["Throughput", "Tokens", "Step time", "Memory"]
    record.history = [entry for entry in record.history if "loss" in entry]
    record.sessions = []
    assert titles(record) == ["Loss", "Learning rate", "Gradient norm"]
    assert titles(RunRecord("empty", {})) == []


def test_finite_losses_of_training_and_of_evaluations_share_a_chart(record):
    training, evaluation = curves.losses(record)
    assert (training.name, training.x, training.y) == ("training", [1, 2, 3, 4], [0.9, 0.7, 0.5, 0.4])
    assert (evaluation.name, evaluation.x, evaluation.y) == ("evaluation", [2, 4], [0.8, 0.6])
    record.history[1]["loss"] = math.nan
    assert curves.losses(record)[0].x == [1, 3, 4]


def test_metrics_of_another_scale_have_charts_of_their_own(record):
    for entry in record.history:
        if "eval_loss" in entry:
            entry |= {"eval_perplexity": 20.0, "eval_f1": 0.3}
    shares, other = curves.metric_charts(record)
    assert [curve.name for curve in shares.curves] == ["accuracy", "f1"]
    assert (other.title, other.curves[0].y) == ("perplexity", [20.0, 20.0])


def test_rates_leave_out_evaluations_time_between_sessions_and_a_short_stretch_at_the_end(record):
    # 2 steps of 8 examples: in 2 seconds; then in 3 seconds, one of them evaluating
    samples = curves.rates(record, STEP, 8)
    assert (samples.x, samples.y) == ([2.0, 7.0], [8.0, 8.0])  # x is seconds on the training clock
    assert curves.rates(record, OPERATIONS, 1 / 60).y == pytest.approx([80.0, 80.0])
    record.sessions[1].marks.append([6, 7.01, 19300.0, None, None, 2**30])
    assert curves.rates(record, STEP, 8).y == [8.0, 8.0]
    record.sessions[1].marks = [[2, 4.0, 0.0, None, None, 1], [4, 4.1, 9.0, None, None, 1]]
    assert curves.rates(record, STEP, 8).y == [8.0]
    record.sessions.pop(0)
    assert curves.rates(record, STEP, 8).y == pytest.approx([160.0])  # all that there is


def seconds_of_steps(record, *events):
    """Returns the times of the steps and of the slow ones: 1 s each for 20 s, 2 s for 20 s, 1 s for 20 s."""
    steps = [[step, seconds, 0.0, None, None, 1] for step, seconds in zip(
        range(0, 60, 10), (0.0, 10.0, 20.0, 40.0, 60.0, 70.0), strict=True
    )]  # fmt: skip
    record.sessions = [Session(0, 0.0, 0.0, 30.0, steps[:3]), Session(30, 30.0, 0.0, 50.0, steps[2:])]
    record.events = list(events)
    return [list(zip(curve.x, curve.y, strict=True)) for curve in curves.step_times(record)]


def test_slow_steps_are_marked_up_to_the_end_of_the_session_or_until_they_are_fast_again(record):
    every = [(10.0, 1.0), (20.0, 1.0), (40.0, 2.0), (60.0, 2.0), (70.0, 1.0)]
    slow, steady = Event("slow", 40, 55.0, "", took=30.0), Event("steady", 45, 65.0)
    assert seconds_of_steps(record) == [every, []]
    assert seconds_of_steps(record, slow, steady) == [every, every[2:4]]
    assert seconds_of_steps(record, slow) == [every, every[2:]]
    assert seconds_of_steps(record, Event("slow", 20, 28.0, "", took=15.0)) == [every, every[1:2]]
    assert seconds_of_steps(record, Event("slow", 99, 999.0, "", took=1.0)) == [every, []]  # edited by hand


def test_step_time_is_one_curve_or_two_with_slow_steps(record):
    def names(charts):
        (chart,) = [chart for chart in charts if chart.title == "Step time"]
        return [curve.name for curve in chart.curves]

    seconds_of_steps(record)
    assert names(curves.charts(record)) == ["all steps"]
    seconds_of_steps(record, Event("slow", 40, 55.0, "", took=30.0))
    assert names(curves.charts(record)) == ["all steps", "slow"]


def test_a_thinned_curve_keeps_its_spikes():
    values = [0.0] * 100_000
    values[54_321] = 9.0
    short = curves.thinned(Curve("loss", list(range(100_000)), values), 400)
    assert len(short.x) <= 402
    assert max(short.y) == 9.0
    assert (short.x[0], short.x[-1]) == (0, 99_999)


def series(figure):
    """Returns the texts and the number of lines of each series of a figure, by its class."""
    found = {}
    for group in ElementTree.fromstring(figure).iter(f"{SVG}g"):
        if (kind := group.get("class") or "").startswith("series "):
            texts = [title.text for title in group.iter(f"{SVG}title")]
            lines = sum(path.get("class") == "line reactive nofill" for path in group.iter(f"{SVG}path"))
            before = found.get(kind, ([], 0))
            found[kind] = (before[0] + texts, before[1] + lines)
    return found


def titles_of(figure):
    """Returns what the horizontal and the vertical axis mean."""
    return [text.text for text in ElementTree.fromstring(figure).iter(f"{SVG}text") if text.get("class") == "title"]


def labels(figure, axis):
    groups = ElementTree.fromstring(figure).iter(f"{SVG}g")
    groups = [group for group in groups if f"axis {axis}" in (group.get("class") or "")]
    return [text.text for group in groups for text in group.iter(f"{SVG}text")]


def test_each_curve_has_a_text_at_each_point_and_a_logarithmic_axis_over_many_powers_of_ten(record):
    figure = charts.draw_curves(curves.charts(record)[0], 4, charts.breaks_of(record))
    training = ["training, step 1: 0.9", "training, step 2: 0.7", "training, step 3: 0.5", "training, step 4: 0.4"]
    assert series(figure) == {
        "series break best": ([], 1),
        "series break soft": ([], 1),
        "series curve color-0 dash-0": (training, 1),
        "series curve color-1 dash-0": (["evaluation, step 2: 0.8", "evaluation, step 4: 0.6"], 1),
    }
    assert labels(figure, "x") == ["0", "1", "2", "3", "4"]
    assert titles_of(figure) == ["step", "loss"]
    record.history[0]["loss"] = 900.0
    loss = curves.charts(record)[0]
    assert loss.log
    assert {"1", "10", "100"} <= set(labels(charts.draw_curves(loss, 4), "y"))


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ([0.037, 0.7079], ["0", "0.2", "0.4", "0.6", "0.8"]),  # no line below 0 for values that are never below
        ([-3.2, 5.0], ["-5", "-2.5", "0", "2.5", "5"]),
        ([0.61, 0.61], ["0.5", "0.55", "0.6", "0.65", "0.7"]),
        ([12.0, 118.0], ["0", "50", "100", "150"]),
        ([0.9, 0.9000000000000001], ["0.8", "0.85", "0.9", "0.95", "1"]),  # pygal would never end
        ([0.0, 5e-324], ["-1", "-0.5", "0", "0.5", "1"]),
        ([0.0, 1e-3], ["0", "2.5e-4", "5e-4", "7.5e-4", "1e-3"]),
        ([5.74522, 5.74538], ["5.7452", "5.74525", "5.7453", "5.74535", "5.7454"]),
    ],
)
def test_all_points_are_between_the_first_and_the_last_line_of_the_grid(values, lines):
    assert labels(charts.draw_curves(Chart("x", [Curve("", [0, 1], values)]), 1), "y") == lines


@pytest.mark.parametrize("height", [1e9, 1e30, -1e149])
def test_labels_of_huge_numbers_are_short(height):
    """pygal never ends if the labels leave no room for the title of an axis."""
    heights = [height * part / 4 for part in range(5)]
    assert max(map(len, charts._labels(heights))) <= 9
    figure = charts.draw_curves(Chart("x", [Curve("", [0, 1], [0.0, height])], small=True), 1)
    assert len(labels(figure, "y")) > 3


def test_steps_have_whole_labels_that_are_easy_to_read():
    def ticks(last_step):
        return labels(charts.draw_curves(Chart("x", [Curve("", [0, last_step], [0.0, 1.0])]), last_step), "x")

    assert ticks(3) == ["0", "1", "2", "3"]
    assert ticks(12) == ["0", "3", "6", "9", "12"]
    assert ticks(115) == ["0", "25", "50", "75", "100"]
    assert ticks(5900) == ["0", "2,000", "4,000"]


def test_an_axis_without_a_zero_has_one_line_at_the_bottom():
    """pygal draws another one a few pixels below."""
    for values in ([0.6, 0.7], [0.0, 1.0]):
        figure = charts.draw_curves(Chart("x", [Curve("", [0, 1], values)]), 1)
        (axis,) = (
            group for group in ElementTree.fromstring(figure).iter(f"{SVG}g") if "axis y" in (group.get("class") or "")
        )
        assert len(list(axis.iter(f"{SVG}path"))) == len(labels(figure, "y"))


def test_charts_of_few_points_are_small_and_an_odd_large_one_is_wide(record):
    assert all(chart.small for chart in curves.charts(record))
    for step in range(5, 9):
        record.history.insert(-1, {"loss": 0.3, "learning_rate": 1e-5, "grad_norm": 1.0, "step": step})
    found = {chart.title: (chart.small, chart.wide) for chart in curves.charts(record)}
    assert found["Loss"] == (False, True)
    assert {found[name] for name in found if name != "Loss"} == {(True, False)}
    for step in range(5, 10):
        record.history.insert(-1, {"eval_accuracy": 0.5, "step": step})
    found = {chart.title: (chart.small, chart.wide) for chart in curves.charts(record)}
    assert (found["Loss"], found["Metrics"]) == ((False, False), (False, False))


def test_a_curve_of_many_evaluations_has_no_marks():
    for count, marked in ((40, True), (41, False)):
        figure = charts.draw_curves(Chart("x", [Curve("", list(range(count)), [1.0] * count)]), count)
        assert ("unmarked" in figure) is not marked


def test_what_trl_logs_in_training_too_is_no_score(record):
    for entry in record.history:
        prefix = "eval_" if "eval_loss" in entry else ""
        entry |= {f"{prefix}entropy": 5.0, f"{prefix}num_tokens": 7.0} if "train_runtime" not in entry else {}
    assert curves.scores(record) == ["eval_accuracy"]
    assert curves.metric_names(record) == ["eval_loss", "eval_accuracy", "eval_entropy"]


def test_the_best_step_is_that_of_the_best_checkpoint_or_of_the_lowest_evaluation_loss(record):
    record.best = {"name": "eval_accuracy", "step": 2}
    assert curves.best_step(record) == (2, "best accuracy")
    record.best = {}
    assert curves.best_step(record) == (4, "lowest evaluation loss")
    record.history = [entry for entry in record.history if "eval_loss" not in entry or entry["step"] == 4]
    assert curves.best_step(record) is None


def test_a_chart_of_many_long_curves_stays_small():
    many = [Curve(f"run {number}", list(range(5000)), [float(number)] * 5000, color=number) for number in range(40)]
    figure = charts.draw_curves(Chart("x", many), 5000)
    assert len(figure) < 500_000
    assert len(series(figure)) == 32  # eight colors in four dashes
    assert sum(lines for _, lines in series(figure).values()) == 40


def test_throughput_is_drawn_over_time_and_padding_above_the_real_tokens(record):
    record.sessions[0].marks.insert(1, [1, 1.0, 4800.0, None, None, 2**30])
    throughput = next(chart for chart in curves.charts(record) if chart.title == "Throughput")
    drawn = charts.draw_curves(throughput, 4, charts.breaks_of(record))
    texts = ["1.0 s: 8 samples/s", "2.0 s: 8 samples/s", "7.0 s: 8 samples/s"]
    assert series(drawn)["series curve color-0 dash-0"][0] == texts
    assert labels(drawn, "x") == ["0", "2", "4", "6"]
    assert titles_of(drawn) == ["training time, s", "samples/s"]
    drawn = series(charts.draw_padding(record.data["padded"]))
    assert drawn["series color-0"][0] == ["50 real tokens", "100 real tokens"]
    assert drawn["series padding"][0] == ["14 padding tokens", "28 padding tokens"]


def test_the_time_line_has_a_lane_for_each_kind_of_event(record):
    figure = charts.draw_time_line(record)
    assert labels(figure, "y") == ["training", "evaluations", "checkpoints", "faults"]
    assert series(figure)["series faults"][0] == ["step 2 stop by SIGTERM"]
    record.events = [event for event in record.events if event.kind != "checkpoint"]
    assert labels(charts.draw_time_line(record), "y") == ["training", "evaluations", "faults"]
    assert charts.draw_time_line(RunRecord("no times", {})) == ""
