"""Evaluation and prediction."""

import numpy as np
import pytest
import torch

from mps_trainer import MisconfigurationException
from tests.conftest import accuracy, examples, logged

pytestmark = pytest.mark.every_device


def test_evaluation_covers_every_example_once(make_trainer):
    trainer = make_trainer({"compute_metrics": accuracy, "eval_dataset": examples(21)}, per_device_eval_batch_size=8)
    metrics = trainer.evaluate()
    batch = {name: torch.stack([torch.as_tensor(row[name]) for row in examples(21)]) for name in ("x", "labels")}
    with torch.no_grad():
        outputs = trainer.model.cpu().eval()(**batch)
    expected = (outputs["logits"].argmax(-1) == batch["labels"]).float().mean().item()
    assert metrics["eval_accuracy"] == pytest.approx(expected)
    assert metrics["eval_loss"] == pytest.approx(outputs["loss"].item())
    assert set(metrics) == {
        "eval_accuracy",
        "eval_loss",
        "eval_model_preparation_time",
        "eval_runtime",
        "eval_samples_per_second",
        "eval_steps_per_second",
        "epoch",
    }


def test_predictions_keep_the_order_of_the_dataset(make_trainer):
    trainer = make_trainer({"compute_metrics": accuracy})
    output = trainer.predict(examples(13))
    assert output.predictions.shape == (13, 2)
    assert output.label_ids.tolist() == [row["labels"] for row in examples(13)]
    assert {"test_accuracy", "test_loss"} <= set(output.metrics)


def test_prediction_without_labels_has_no_loss(make_trainer):
    rows = [{"x": row["x"]} for row in examples(5)]
    output = make_trainer({"compute_metrics": accuracy}).predict(rows, metric_key_prefix="predict")
    assert output.label_ids is None
    assert output.predictions.shape == (5, 2)
    assert set(output.metrics) == {
        "predict_model_preparation_time",
        "predict_runtime",
        "predict_samples_per_second",
        "predict_steps_per_second",
    }


@pytest.mark.parametrize("batches", [None, 1, 2])
def test_moving_outputs_to_host_memory_early_changes_nothing(make_trainer, batches):
    trainer = make_trainer({"compute_metrics": accuracy}, eval_accumulation_steps=batches)
    expected = make_trainer({"compute_metrics": accuracy}).predict(examples(24))
    np.testing.assert_array_equal(trainer.predict(examples(24)).predictions, expected.predictions)


def test_logits_can_be_reduced_before_they_are_gathered(make_trainer):
    trainer = make_trainer(
        {
            "compute_metrics": lambda p: {"right": float((p.predictions == p.label_ids).mean())},
            "preprocess_logits_for_metrics": lambda logits, labels: logits.argmax(-1),
        }
    )
    assert trainer.predict(examples(7)).predictions.shape == (7,)


def test_dictionary_of_datasets_gives_metrics_under_each_name(make_trainer):
    trainer = make_trainer(
        {"eval_dataset": {"easy": examples(4), "hard": examples(4, seed=2)}, "compute_metrics": accuracy},
        max_steps=1,
        eval_strategy="steps",
        eval_steps=1,
    )
    trainer.train()
    assert len(logged(trainer, "eval_easy_accuracy")) == len(logged(trainer, "eval_hard_loss")) == 1


def test_evaluation_leaves_the_model_in_eval_mode_and_the_next_step_does_not(make_trainer):
    trainer = make_trainer(max_steps=2, eval_strategy="steps", eval_steps=1)
    trained = []
    step = trainer.training_step
    trainer.training_step = lambda model, *args: (step(model, *args), trained.append(model.training))[0]
    trainer.train()
    assert trained == [True, True]
    assert not trainer.model.training


def test_evaluation_without_a_dataset_is_refused(make_trainer):
    with pytest.raises(MisconfigurationException, match="give the Trainer an eval_dataset"):
        make_trainer({"eval_dataset": None}).evaluate()


def test_evaluation_on_start_comes_before_the_first_step(make_trainer):
    trainer = make_trainer(max_steps=1, eval_on_start=True)
    trainer.train()
    assert "eval_loss" in trainer.state.log_history[0]
    assert trainer.state.log_history[0]["step"] == 0
