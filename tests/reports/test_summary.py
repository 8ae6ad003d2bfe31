"""Tests the words and numbers that a page shows of a record."""

import math

import pytest
from torch.utils.data import DataLoader

from mps_trainer import TrainingArguments
from mps_trainer.reports import summary
from mps_trainer.reports.formatting import duration, number
from mps_trainer.reports.pages import run_page
from mps_trainer.reports.record import Event
from mps_trainer.reports.run_facts import data_of

from .conftest import rows_of


def test_the_headline_has_the_metrics_first(record):
    assert summary.headline(record) == [
        ("accuracy", "0.75", "best 0.75 at step 4"),
        ("evaluation loss", "0.6", ""),
        ("training loss", "0.4", "last logged; mean of the run 0.6"),
        ("training time", "8.0 s", "in 2 sessions"),
        ("throughput", "8.5", "samples/s of the last session; median between logs 8"),
        ("peak memory", "2.0 GiB", "of the process, at logs"),
    ]


def test_time_and_throughput_are_of_the_steps_with_a_record(record):
    del record.sessions[1]
    assert summary.throughput(record)[1].startswith("samples/s of the whole run")
    record.sessions[0].first_step = 2  # resumed from a checkpoint of transformers
    assert summary.throughput(record)[1].startswith("samples/s of the last session")
    assert ("training time", "4.0 s", "since step 2") in summary.headline(record)
    assert summary.outcome(record)[2] == "4 of 4 steps in 4.0 s since step 2 on simulated mps."


def test_a_run_without_losses_shows_their_mean_and_one_that_has_not_ended_the_median_throughput(record):
    record.history = [entry for entry in record.history if "loss" not in entry]
    assert summary.final_metrics(record)["mean training loss"] == 0.6
    assert "training loss" not in summary.final_metrics(record)
    record.history.pop()
    assert summary.throughput(record) == (8.0, "samples/s, median between logs")
    record.sessions = []
    assert summary.throughput(record) is None


def test_metrics_of_one_evaluation_without_a_tile_are_a_table_and_no_chart(record):
    assert summary.metrics_logged_once(record) == []
    record.history = [entry for entry in record.history if "eval_loss" not in entry or entry["step"] == 4]
    page = run_page(record)
    assert "<h2>Evaluation</h2>" not in page  # both are tiles
    assert "<h3>Metrics" not in page
    (evaluation,) = (entry for entry in record.history if "eval_loss" in entry)
    evaluation.update({f"eval_m{place}": place / 10 for place in range(1, 7)})
    table = rows_of(run_page(record))[1:3]
    assert sorted(table) == [["evaluation loss", "0.6", "4"], ["m6", "0.6", "4"]]


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
    [(0.123456, "0.1235"), (12345.6, "12,346"), (3.0, "3"), (2e-5, "2e-05"), (math.nan, "nan"), (math.inf, "inf")],
)
def test_number_has_four_digits(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.96, "10.0 s"), (59.4, "59 s"), (75, "1 min 15 s"), (3700, "1 h 1 min"), (200_000, "2 d 7 h")],
)
def test_duration_has_two_units(seconds, text):
    assert duration(seconds) == text
