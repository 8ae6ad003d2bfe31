"""Evaluation and prediction."""

import numpy as np
import pytest

from tests.conftest import accuracy, callback, examples
from tests.tiny import tiny, tokenizer_of_words

pytestmark = pytest.mark.every_device


@pytest.mark.parametrize(("strategy", "concat"), [("group", True), ("group", False), ("bucket", False)])
def test_predictions_by_length_keep_the_order_of_the_dataset(make_trainer, strategy, concat):
    rows = [{"input_ids": [row] * (4 + row % 3), "labels": int(row < 5)} for row in range(13)]
    model = tiny("BertForSequenceClassification", num_hidden_layers=1)
    settings = {"train_sampling_strategy": f"{strategy}_by_length", "eval_do_concat_batches": concat}
    given = {"model": model, "train_dataset": rows, "processing_class": tokenizer_of_words()}
    labels = make_trainer(given, **settings).predict(rows).label_ids
    assert concat or [len(batch) for batch in labels] == [8, 5]
    assert np.concatenate([labels] if concat else labels).tolist() == [row["labels"] for row in rows]


@pytest.mark.parametrize("strategy", ["random", "group_by_length", "bucket_by_length"])
def test_an_empty_dataset_has_no_predictions_in_any_order(make_trainer, strategy):
    assert make_trainer(train_sampling_strategy=strategy).predict([]).predictions is None


def test_prediction_without_labels_has_no_loss_and_no_other_metrics(make_trainer):
    rows = [{"x": row["x"]} for row in examples(5)]
    output = make_trainer({"compute_metrics": accuracy}).predict(rows, metric_key_prefix="predict")
    assert output.label_ids is None
    assert output.predictions.shape == (5, 2)
    times = {"model_preparation_time", "runtime", "samples_per_second", "steps_per_second"}
    assert set(output.metrics) == {f"predict_{name}" for name in times}


def test_evaluation_leaves_the_model_in_eval_mode_and_the_next_step_does_not(make_trainer, make_model):
    trainer = make_trainer(max_steps=2, eval_strategy="steps", eval_steps=1)
    other, batch = make_model().eval().to(trainer.args.device), trainer.data_collator(examples(2))
    trainer.add_callback(callback(on_train_begin=lambda **_: trainer.training_step(other, batch)))
    trained = []
    trainer.add_callback(callback(on_pre_optimizer_step=lambda model, **_: trained.append(model.training)))
    trainer.train()
    assert [*trained, other.training] == [True, True, True]  # a subclass may train two models
    assert not trainer.model.training
