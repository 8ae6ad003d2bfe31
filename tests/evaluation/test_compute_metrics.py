"""compute_metrics is called, or a warning says why it was not."""

import pytest
import torch
from torch import nn

from mps_trainer import Trainer
from tests.conftest import examples, messages_with

ROWS = [{"x": torch.tensor([i / 9, 1 - i / 9]), "y": i % 3} for i in range(10)]
LABELLED = [{"x": row["x"], "labels": row["y"]} for row in ROWS]


class OfTwoNumbers(nn.Module):
    """A classifier that takes its labels as `y`, a name without "label"."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, x, y=None):
        logits = self.layer(x)
        return {"logits": logits} if y is None else {"loss": nn.functional.cross_entropy(logits, y), "logits": logits}


class Wrapper(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = OfTwoNumbers()

    def forward(self, *args, **kwargs):
        return self.model(*args, **kwargs)


class WithoutOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, x, labels):
        return {"loss": nn.functional.cross_entropy(self.layer(x), labels), "logits": None}


class WithoutLabels(Trainer):
    def prediction_step(self, *args, **kwargs):
        return *super().prediction_step(*args, **kwargs)[:2], None


@pytest.fixture
def evaluated(make_trainer, caplog):
    """`evaluated(trainer, **settings)` returns the warnings of two evaluations, and the calls of compute_metrics."""

    def evaluate(trainer, **settings):
        calls = []

        def metric(prediction, compute_result=True):
            calls.append(prediction)
            return {"number": 1.0}

        given = {"model": OfTwoNumbers(), "train_dataset": ROWS, "eval_dataset": ROWS, **trainer}
        made = make_trainer({**given, "compute_metrics": metric}, per_device_eval_batch_size=4, **settings)
        made.evaluate()
        made.evaluate()
        return messages_with(caplog, "compute_metrics was not called"), calls

    return evaluate


NO_NAME = "OfTwoNumbers.forward() has no argument with 'label' in its name, so which of x, y are labels is unknown"
CAUSES = {
    "unusual name": ({}, {}, NO_NAME),
    "wrapper": (
        {"model": Wrapper()},
        {"remove_unused_columns": False},
        "Wrapper.forward() has no argument with 'label' in its name",
    ),
    "no labels": (
        {"eval_dataset": [{"x": row["x"]} for row in ROWS]},
        {"label_names": ["y"]},
        "the batches have no 'y' (label_names=['y']), only x.",
    ),
    "misspelt": (
        {},
        {"label_names": ["labels"], "remove_unused_columns": False},
        "the batches have no 'labels' (label_names=['labels']), only x, y.",
    ),
    "no names": ({}, {"label_names": []}, "label_names=[] says that the batches (x, y) have no labels"),
    "loss alone": ({}, {"label_names": ["y"], "prediction_loss_only": True}, "prediction_loss_only=True"),
    "each batch": ({}, {"batch_eval_metrics": True}, NO_NAME),
    "no outputs": (
        {"model": WithoutOutputs(), "eval_dataset": LABELLED},
        {},
        "WithoutOutputs returned None beside its loss",
    ),
    "preprocessed": (
        {"preprocess_logits_for_metrics": lambda logits, labels: None},
        {"label_names": ["y"]},
        "preprocess_logits_for_metrics returned None",
    ),
    "an override": (
        {"kind": WithoutLabels},
        {"label_names": ["y"]},
        "WithoutLabels.prediction_step returned no labels",
    ),
    "no rows": ({"eval_dataset": []}, {"label_names": ["y"]}, "the evaluation had no batch"),
    "no whole batch": (
        {"eval_dataset": ROWS[:3]},
        {"label_names": ["y"], "dataloader_drop_last": True},
        "the evaluation had no batch",
    ),
}


@pytest.mark.parametrize(("trainer", "settings", "cause"), CAUSES.values(), ids=CAUSES.keys())
def test_one_warning_names_the_cause(evaluated, trainer, settings, cause):
    warnings, calls = evaluated(trainer, **settings)
    assert calls == []
    assert len(warnings) == 1
    assert cause in warnings[0]
    assert "\n" not in warnings[0]


@pytest.mark.parametrize("settings", [{}, {"batch_eval_metrics": True}, {"eval_do_concat_batches": False}])
def test_no_warning_where_it_is_called(evaluated, settings):
    warnings, calls = evaluated({}, label_names=["y"], **settings)
    assert (len(calls), warnings) == (6 if "batch_eval_metrics" in settings else 2, [])


def test_metrics_that_are_not_returned_are_reported_once(make_trainer, caplog):
    trainer = make_trainer({"compute_metrics": lambda prediction, compute_result: None}, batch_eval_metrics=True)
    trainer.evaluate()
    trainer.evaluate()
    assert len(messages_with(caplog, "compute_metrics returned None")) == 1


def test_each_cause_has_a_warning_of_its_own_and_is_in_the_report(make_trainer, caplog):
    rows = {"first": [{"x": row["x"]} for row in examples(4)], "second": []}
    given = {"eval_dataset": rows, "compute_metrics": lambda _: {}}
    trainer = make_trainer(given, max_steps=2, eval_strategy="steps", eval_steps=1, report=True)
    trainer.train()
    warnings = messages_with(caplog, "compute_metrics was not called")
    assert len(warnings) == 2
    events = trainer._mt_events.report.record.events
    assert [event.text for event in events if event.kind == "warning"] == warnings


def test_predictions_for_rows_without_labels_are_no_reason_to_warn(make_trainer, caplog):
    trainer = make_trainer({"compute_metrics": lambda _: {}})
    trainer.predict([{"x": row["x"]} for row in examples(4)])
    trainer.predict([])
    assert messages_with(caplog, "compute_metrics") == []


def test_predictions_for_labels_under_another_name_warn(make_trainer, caplog):
    trainer = make_trainer({"compute_metrics": lambda _: {}}, label_names=["target"], remove_unused_columns=False)
    trainer.predict(examples(4))
    (warning,) = messages_with(caplog, "compute_metrics was not called")
    assert "label_names=['target']" in warning
