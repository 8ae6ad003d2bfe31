"""Tests the words and numbers that a page shows of a record."""

import math

import pytest
from torch.utils.data import DataLoader

from mps_trainer import TrainingArguments
from mps_trainer.reports import curves, summary
from mps_trainer.reports.formatting import duration, number
from mps_trainer.reports.pages import run_page
from mps_trainer.reports.record import Event, RunRecord
from mps_trainer.reports.run_facts import data_of

from .conftest import rows_of


def test_tiles_have_loss_time_throughput_and_memory(record):
    tiles = [
        ("training loss", "0.4", "last logged; mean of the run 0.6"),
        ("training time", "8.0 s", "in 2 sessions"),
        ("throughput", "8.5 samples/s", "of the last session; median between logs 8"),
        ("highest logged memory", "2.0 GiB", "of the process"),
    ]
    assert summary.tiles(record) == tiles
    record.history = [entry for entry in record.history if "eval_loss" not in entry]
    assert summary.hero(record) == tiles[0]
    assert summary.tiles(record) == tiles[1:]
    record.history = [entry for entry in record.history if "loss" not in entry]
    assert summary.hero(record) == ("mean training loss", "0.6", "")
    assert summary.hero(RunRecord("empty", {})) is None
    assert summary.tiles(RunRecord("empty", {})) == []


BETTER_BEFORE = {"metric": 0.9, "step": 2, "name": "accuracy", "checkpoint": "checkpoint-2"}


def better_before(record, **arguments):
    """Makes step 2 the best one, as after a run that loads its model and evaluates it again."""
    record.best, record.arguments = dict(BETTER_BEFORE), arguments
    record.history[2]["eval_accuracy"] = 0.9
    record.history.append({"eval_accuracy": 0.9, "eval_loss": 0.8, "eval_late": 3.0, "step": 4})
    record.history.append({"eval_accuracy": 0.1, "step": 4})  # of other data


def test_hero_is_the_metric_of_the_model_that_is_kept(record):
    assert summary.hero(record) == ("accuracy", "0.75", "best and last evaluation, step 4")
    better_before(record, load_best_model_at_end=True)
    assert summary.hero(record) == ("accuracy", "0.9", "best checkpoint, step 2; last 0.75 at step 4")
    record.outcome["kind"] = "stopped"  # so the best model was not loaded
    assert summary.hero(record) == ("accuracy", "0.75", "last evaluation, step 4; best 0.9 at step 2")
    record.best = {}
    assert summary.hero(record)[2] == "last evaluation, step 4"


def test_hero_is_the_metric_that_chooses_the_checkpoint_or_the_first_score(record):
    for entry in record.history:
        entry.update({"entropy": 1.0} if "loss" in entry else {})
        if "eval_loss" in entry:
            entry.update({"eval_entropy": 1.1, "eval_f1": entry.pop("eval_accuracy")})  # TRL's entropy first
    assert summary.hero(record)[0] == "f1"
    record.best["name"] = "entropy"
    assert summary.hero(record)[0] == "entropy"
    record.best["name"] = "loss"
    assert summary.hero(record)[0] == "f1"
    record.history = [{k: v for k, v in entry.items() if k != "eval_f1"} for entry in record.history]
    assert summary.hero(record)[:2] == ("evaluation loss", "0.6")


def test_best_and_last_evaluation_are_side_by_side(record):
    head, rows = summary.evaluation_table(record)
    assert head == ["metric", "best accuracy and last, step 4"]
    assert rows == [("accuracy", "0.75"), ("evaluation loss", "0.6")]
    better_before(record, load_best_model_at_end=True)
    head, rows = summary.evaluation_table(record)
    assert head == ["metric", "best accuracy, step 2", "last, step 4"]
    assert rows == [
        ("accuracy", "0.9", "0.75"),
        ("late", "3", "3 at step 2"),
        ("evaluation loss", "0.8", "0.6"),
    ]
    assert summary.evaluation_table(RunRecord("empty", {})) == ([], [])


def test_the_first_evaluation_after_training_counts(record):
    record.history = [entry for entry in record.history if "eval_loss" not in entry]
    record.history += [{"eval_accuracy": 0.8, "step": 4}, {"eval_accuracy": 0.3, "eval_f1": 0.2, "step": 4}]
    assert summary.evaluation_table(record)[1] == [("accuracy", "0.8"), ("f1", "0.2")]


def test_an_evaluation_after_training_is_of_the_last_model_unless_the_best_one_was_loaded(record):
    better_before(record, load_best_model_at_end=False)
    assert summary.evaluation_table(record)[1][:2] == [("accuracy", "0.9", "0.75"), ("late", "–", "3")]
    (shares,) = curves.metric_charts(record)
    assert shares.curves[0].y == [0.9, 0.75]
    record.arguments["load_best_model_at_end"] = True
    assert curves.metric_charts(record)[0].curves[0].y == [0.9, 0.75]
    assert summary.evaluation_table(record)[1][1] == ("late", "3", "3 at step 2")


def test_time_and_throughput_are_of_the_steps_with_a_record(record):
    del record.sessions[1]
    assert summary.throughput(record)[1].startswith("of the whole run")
    record.sessions[0].first_step = 2  # resumed from a checkpoint of transformers
    assert summary.throughput(record)[1].startswith("of the last session")
    assert ("training time", "4.0 s", "since step 2") in summary.tiles(record)
    assert summary.outcome(record)[2] == "4 of 4 steps in 4.0 s since step 2 on simulated mps."


def test_a_run_without_losses_shows_their_mean_and_one_that_has_not_ended_the_median_throughput(record):
    record.history = [entry for entry in record.history if "loss" not in entry]
    assert summary.final_metrics(record)["mean training loss"] == 0.6
    assert "training loss" not in summary.final_metrics(record)
    record.history.pop()
    assert summary.throughput(record) == (8.0, "median between logs")
    record.sessions = []
    assert summary.throughput(record) is None


def test_metrics_of_one_evaluation_are_a_table_and_no_chart(record):
    record.history = [entry for entry in record.history if "eval_loss" not in entry or entry["step"] == 4]
    page = run_page(record)
    assert "<h3>Metrics" not in page
    assert rows_of(page)[:3] == [["metric", "step 4"], ["accuracy", "0.75"], ["evaluation loss", "0.6"]]
    (evaluation,) = (entry for entry in record.history if "eval_loss" in entry)
    evaluation.update({f"eval_m{place}": place / 10 for place in range(1, 7)})
    assert rows_of(run_page(record))[7:9] == [["m6", "0.6"], ["evaluation loss", "0.6"]]


def test_the_title_names_the_base_model_or_says_that_there_is_none(record):
    record.origin["base_model"] = "google/bert-tiny"
    assert summary.model_line(record).startswith("bert-tiny, ")
    del record.origin["base_model"]
    assert summary.model_line(record).endswith(" parameters, no pretrained model")
    assert f"<title>{record.name}: {summary.model_line(record)}</title>" in run_page(record)


@pytest.mark.parametrize(
    ("outcome", "word", "sentence"),
    [
        ({"kind": "finished"}, "finished", "4 of 4 steps in 8.0 s on simulated mps."),
        ({"kind": "stopped", "text": "by SIGTERM"}, "stopped", "Stopped by SIGTERM after 4 of 4 steps in 8.0 s on"),
        ({"kind": "failed", "text": "E: no"}, "failed", "After 4 of 4 steps in 8.0 s on simulated mps: E: no"),
        ({"kind": "running"}, "not ended", "4 of 4 steps in 8.0 s on simulated mps when this was written."),
        ({}, "unknown end", "4 of 4 steps; run_record.json does not tell how the run ended."),
    ],
)
def test_the_outcome_is_a_word_and_a_sentence(record, outcome, word, sentence):
    record.outcome = {"step": 4, "max_steps": 4, **outcome}
    badge, _, said = summary.outcome(record)
    assert badge == word
    assert said.startswith(sentence)


def facts_of(record):
    return {row[0]: row[1] for row in rows_of(run_page(record)) if len(row) > 1}


def test_padding_is_counted_with_length_buckets_and_follows_from_the_operations_without(record):
    facts = facts_of(record)
    assert facts["examples in an update"] == "8 (4 on the device, 2 accumulated)"
    assert facts["order"] == "bucket by length"
    assert facts["padding"] == "22 % of tokens"
    assert ["8", "2", "64", "22 %"] in rows_of(run_page(record))
    record.data.pop("padded")
    facts = facts_of(record)
    assert facts["tokens of an example in a batch"] == "10 with padding, on average"
    assert facts["padding"] == "6 % of tokens"
    record.model = {}
    assert facts_of(record)["padding"].startswith("not known")


def test_data_has_the_batch_of_the_checkpoint_and_the_percentiles_of_lengths(record):
    args = TrainingArguments("out", per_device_train_batch_size=9, gradient_accumulation_steps=2, report_to="none")
    record.data = data_of(args, DataLoader([1] * 20), batch=12)
    assert facts_of(record)["examples in an update"] == "12 (6 on the device, 2 accumulated)"
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([{"input_ids": [1] * length} for length in range(1, 101)])
    record.data = data_of(TrainingArguments("out", report_to="none"), DataLoader(rows), batch=8)
    text = "shortest 1, median 50, 95th percentile 95, longest 100, mean 50"
    assert facts_of(record)["tokens of an example"] == text


def test_operators_that_fell_back_are_listed_up_to_thirty(record):
    assert ["aten::cumsum", "3", "1"] in rows_of(run_page(record))
    record.fallback["operators"] = [{"name": f"aten::op{n}", "calls": None, "shapes": None} for n in range(32)]
    page = run_page(record)
    assert "Counted. 2 more are not listed." in page
    assert ["aten::op29", "not counted", "not counted"] in rows_of(page)
    assert "aten::op30" not in page


def test_events_are_told_and_checkpoints_are_counted(record):
    record.events.append(Event("warning", 3, 5.0, "The loss was nan at step 3."))
    page = run_page(record)
    rows = rows_of(page)
    begin = rows.index(["time", "step", "what"])
    assert rows[begin + 1 : begin + 6] == [
        ["0.0 s", "0", "began"],
        ["4.0 s", "2", "stopped by SIGTERM"],
        ["4.0 s", "2", "resumed from out/checkpoint-2"],
        ["8.0 s", "4", "ended"],
        ["5.0 s", "3", "warning: The loss was nan at step 3."],
    ]
    assert "1 checkpoint and 2 evaluations. The best checkpoint is checkpoint-4." in page


def test_rejected_devices_and_changed_arguments_are_in_the_page(record):
    record.changed["betas"] = [[0.9, 0.95], None]
    rows = rows_of(run_page(record))
    assert ["not", "cuda", "CUDA does not exist on macOS; train elsewhere"] in rows
    assert ["seed", "7", "42"] in rows
    assert ["betas", "0.9, 0.95", "–"] in rows
    assert [summary.argument(value) for value in (2.5e-4, 5e-5, 0.01, 0.0)] == ["2.5e-4", "5e-5", "0.01", "0"]


def test_origin_has_the_best_checkpoint(record):
    assert summary.origin(record) == {
        "command line": "python train.py",
        "git commit": "0" * 40,
        "dataset": "glue, mrpc",
        "base model": "bert-base",
        "best checkpoint": "checkpoint-4: accuracy 0.75 at step 4",
    }


def test_environment_leaves_out_what_is_not_known(record):
    record.environment = {"mps_trainer": "0.1", "packages": {"numpy": "2.3"}, "memory_bytes": None, "chip": None}
    facts = summary.environment(record)
    assert facts["packages"] == "mps_trainer 0.1, numpy 2.3"
    assert "machine" not in facts
    record.environment |= {"memory_bytes": 2**34, "chip": "Apple M4", "system": "Darwin", "os_version": "26.1"}
    facts = summary.environment(record)
    assert (facts["machine"], facts["system"]) == ("Apple M4, 16.0 GiB of memory", "macOS 26.1")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123456, "0.1235"),
        (12345.6, "12,346"),
        (3.0, "3"),
        (0.001, "0.001"),
        (2.5e-4, "2.5e-4"),
        (2e-5, "2e-5"),
        (-1.2345e-7, "-1.23e-7"),
        (math.nan, "nan"),
        (math.inf, "inf"),
    ],
)
def test_number_has_four_digits(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.96, "10.0 s"), (59.4, "59 s"), (75, "1 min 15 s"), (3700, "1 h 1 min"), (200_000, "2 d 7 h")],
)
def test_duration_has_two_units(seconds, text):
    assert duration(seconds) == text
