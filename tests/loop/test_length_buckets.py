"""A Trainer whose batches are made from length buckets."""

import logging
import re

import datasets
import numpy as np
import pytest
import torch
from torch import nn

from mps_trainer.data.buckets import LengthBuckets
from mps_trainer.data.padding import PadToBucket
from tests.conftest import accuracy, assert_same_weights, callback, logged, weights
from tests.distributed.scenarios import padded

BUCKETS = {"train_sampling_strategy": "bucket_by_length", "num_length_buckets": 3}


class Reader(nn.Module):
    """Two classes from the mean of the tokens' embeddings; with dropout. Remembers the shapes it was given."""

    def __init__(self, dropout=0.1):
        super().__init__()
        self.embedding = nn.Embedding(30, 8)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, 2)
        self.shapes = []

    def forward(self, input_ids, attention_mask, labels=None):
        self.shapes.append(tuple(input_ids.shape))
        mask = attention_mask.unsqueeze(-1).float()
        mean = (self.embedding(input_ids) * mask).sum(1) / mask.sum(1)
        logits = self.head(self.dropout(mean))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def sentences(count, seed=0, longest=40):
    random = np.random.default_rng(seed)
    rows = [random.integers(1, 30, random.integers(3, longest)).tolist() for _ in range(count)]
    return [{"input_ids": row, "attention_mask": [1] * len(row), "labels": int(np.mean(row) > 15)} for row in rows]


def parts():
    torch.manual_seed(0)
    data = {"train_dataset": sentences(100), "eval_dataset": sentences(45, seed=1)}
    return {"model": Reader(), "data_collator": padded, **data}


@pytest.fixture
def make_bucketed(make_trainer):
    return lambda trainer=None, **settings: make_trainer({**parts(), **(trainer or {})}, **{**BUCKETS, **settings})


def lengths(rows):
    return [len(row["input_ids"]) for row in rows]


def fitted():
    return LengthBuckets.fitted(lengths(sentences(100)), 3)


@pytest.mark.every_device
@pytest.mark.parametrize("stop", [2, 3, 5, 13, 14])
@pytest.mark.parametrize(
    "settings",
    [{}, {"gradient_accumulation_steps": 2}, {"data_seed": 5}, {"per_device_train_batch_size": 16}],
    ids=str,
)
def test_resumed_run_equals_one_that_was_never_interrupted(assert_resumes, stop, settings):
    # 13 batches of 8 make an epoch, the last of which has 4 examples; one of 16 comes in two parts
    saving = {"max_steps": 15, "learning_rate": 1e-2, "save_strategy": "steps", "save_steps": 1}
    assert_resumes(stop, parts, **BUCKETS, **saving, **settings)


def test_training_sees_few_shapes_and_every_example(make_bucketed):
    trainer = make_bucketed(num_train_epochs=3)
    trainer.train()
    shapes = trainer.model.shapes
    assert len(shapes) == 3 * 13
    assert sum(size for size, _ in shapes) == 300
    assert {length for _, length in shapes} == set(fitted().lengths)
    assert len(set(shapes)) == 4
    assert [shape for shape in set(shapes) if shape[0] != 8] == [(4, fitted().lengths[0])]  # some of the shortest
    labels = sorted(int(label) for batch in trainer.get_train_dataloader() for label in batch["labels"])
    assert labels == sorted(row["labels"] for row in sentences(100))


@pytest.mark.parametrize("data_seed", [None, 5])
def test_order_follows_the_seed_as_other_orders_do(make_bucketed, data_seed):
    def order(torch_seed):
        trainer = make_bucketed(data_seed=data_seed)
        torch.manual_seed(torch_seed)
        return [batch["labels"].tolist() for batch in trainer.get_train_dataloader()]

    assert order(7) == order(7)
    assert (order(7) == order(8)) == (data_seed is not None)


def test_last_batch_is_left_out_if_it_is_not_full(make_bucketed):
    trainer = make_bucketed(dataloader_drop_last=True)
    assert [len(batch["labels"]) for batch in trainer.get_train_dataloader()] == [8] * 12
    assert len(trainer.predict(sentences(45, seed=1)).predictions) == 40


@pytest.mark.every_device
@pytest.mark.parametrize("more", [{}, {"eval_accumulation_steps": 2}, {"dataloader_num_workers": 1}], ids=str)
def test_everything_of_an_evaluation_comes_in_the_datasets_order(make_bucketed, more):
    def run(**settings):
        seen = []
        given = {"compute_metrics": lambda prediction: seen.append(prediction) or accuracy(prediction)}
        trainer = make_bucketed(given, include_for_metrics=["inputs", "loss"], **{**settings, **more})
        result = trainer.evaluate()
        return result, seen[0], trainer.predict(sentences(21, seed=2))

    result, seen, output = run()
    plain_result, plain, plain_output = run(train_sampling_strategy="random")
    np.testing.assert_allclose(seen.predictions, plain.predictions, atol=1e-6)
    np.testing.assert_array_equal(seen.label_ids, plain.label_ids)
    assert [row[row > 0].tolist() for row in seen.inputs] == [row["input_ids"] for row in sentences(45, seed=1)]
    np.testing.assert_allclose(output.predictions, plain_output.predictions, atol=1e-6)
    np.testing.assert_array_equal(output.label_ids, plain_output.label_ids)
    assert result["eval_accuracy"] == plain_result["eval_accuracy"]
    assert result["eval_loss"] == pytest.approx(plain_result["eval_loss"])
    # the loss of an example is the mean of its batch
    order = [i for batch in make_bucketed().get_eval_dataloader().batch_sampler for i in batch]
    for batch in seen.losses[order][:40].reshape(5, 8):
        assert len(set(batch.tolist())) == 1
    assert len(set(seen.losses.tolist())) == 6


def test_evaluation_goes_by_length_with_the_buckets_of_training(make_bucketed, mps):
    longer = [*sentences(20, seed=3, longest=10), *sentences(1, seed=4, longest=4)]
    longer.append({"input_ids": [1] * 50, "attention_mask": [1] * 50, "labels": 1})
    trainer = make_bucketed({"eval_dataset": longer}, per_device_eval_batch_size=4)
    trainer.evaluate()  # before any training
    shapes = trainer.model.shapes
    shortest = fitted().lengths[0]
    assert shapes == [(4, shortest)] * 4 + [(4, 50), (2, shortest)]


def test_evaluation_on_the_cpu_pads_to_the_longest_example(make_bucketed):
    trainer = make_bucketed(per_device_eval_batch_size=4)
    trainer.evaluate()
    ordered = sorted(lengths(sentences(45, seed=1)))
    expected = [max(ordered[start : start + 4]) for start in range(1, 45, 4)]
    assert trainer.model.shapes == [*((4, length) for length in expected), (1, ordered[0])]


def test_evaluation_without_training_data_has_buckets_of_its_own(make_bucketed, mps):
    trainer = make_bucketed({"train_dataset": None})
    trainer.evaluate()
    own = LengthBuckets.fitted(lengths(sentences(45, seed=1)), 3)
    assert {length for _, length in trainer.model.shapes} == set(own.lengths)


def test_metrics_batch_by_batch_see_every_example(make_bucketed):
    seen = []

    def metrics(prediction, compute_result=False):
        seen.extend(prediction.label_ids.tolist())
        return {"seen": len(seen)} if compute_result else {}

    trainer = make_bucketed({"compute_metrics": metrics}, batch_eval_metrics=True)
    assert trainer.evaluate()["eval_seen"] == 45
    assert sorted(seen) == sorted(row["labels"] for row in sentences(45, seed=1))
    output = trainer.predict(sentences(21, seed=2))
    assert output.predictions.shape == (21, 2)


def test_outputs_that_are_not_one_for_each_example_stay(make_bucketed):
    class Scaled(Reader):
        def forward(self, input_ids, attention_mask, labels=None):
            outputs = super().forward(input_ids, attention_mask, labels)
            return {**outputs, "length": torch.tensor(float(input_ids.shape[1]))}

    trainer = make_bucketed({"model": Scaled()}, per_device_eval_batch_size=16)
    logits, per_batch = trainer.predict(sentences(45, seed=1)).predictions
    assert logits.shape == (45, 2)
    assert per_batch.shape == (3,)


@pytest.mark.parametrize("table", [True, False], ids=["table", "list"])
def test_columns_that_the_model_does_not_take_are_left_out_before_padding(make_bucketed, table):
    rows = [{**row, "idx": i, "text": "a" * i} for i, row in enumerate(sentences(40))]
    data = datasets.Dataset.from_list(rows) if table else rows
    trainer = make_bucketed({"train_dataset": data})
    loader = trainer.get_train_dataloader()
    assert {name for batch in loader for name in batch} == {"input_ids", "attention_mask", "labels"}
    assert {batch["input_ids"].shape[1] for batch in loader} == set(LengthBuckets.fitted(lengths(rows), 3).lengths)


def test_collator_that_pads_to_buckets_already_is_left_alone(make_bucketed):
    own = PadToBucket(padded, LengthBuckets((41,)))
    loader = make_bucketed({"data_collator": own}).get_train_dataloader()
    assert {batch["input_ids"].shape[1] for batch in loader} == {41}


def test_buckets_are_in_the_log_and_on_the_screen_and_in_no_other_order(make_bucketed, capfd, caplog):
    trainer = make_bucketed(max_steps=1, disable_tqdm=False)
    line = str(trainer.get_train_dataloader().batch_sampler)
    assert re.fullmatch(rf"batches of 8, padded to {fitted()} tokens; padding: \d+% of tokens", line)
    with caplog.at_level(logging.INFO, logger="transformers.trainer"):
        logging.getLogger("transformers").propagate = True
        trainer.train()
    assert f"  {line}" in capfd.readouterr().out.splitlines()
    assert f"  {line}" in caplog.messages
    make_bucketed(max_steps=1, disable_tqdm=False, train_sampling_strategy="group_by_length").train()
    assert "padded to" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("settings", "rows", "substeps"),
    [
        ({"per_device_train_batch_size": 16}, {8}, 0),
        ({"per_device_train_batch_size": 8}, {8}, 0),
        ({"per_device_train_batch_size": 17}, {17}, 0),
        ({"per_device_train_batch_size": 16, "gradient_accumulation_steps": 3}, {16}, 6),
    ],
)
def test_an_update_has_examples_of_two_lengths_where_a_batch_can_be_parted(make_bucketed, settings, rows, substeps):
    count = 102 if settings["per_device_train_batch_size"] == 17 else 96
    heard = []
    hears = callback(on_substep_end=lambda **_: heard.append(1))
    trainer = make_bucketed({"train_dataset": sentences(count), "callbacks": [hears]}, max_steps=3, **settings)
    trainer.train()
    assert trainer.state.global_step == 3
    assert {shape[0] for shape in trainer.model.shapes} == rows
    accumulated = settings.get("gradient_accumulation_steps", 1)
    in_all = 3 * accumulated * settings["per_device_train_batch_size"]
    assert sum(shape[0] for shape in trainer.model.shapes) == in_all
    assert len(heard) == substeps
    if rows == {8} and settings["per_device_train_batch_size"] == 16:
        assert any(first[1] != second[1] for first, second in zip(*[iter(trainer.model.shapes)] * 2, strict=True))


def test_a_batch_in_two_parts_is_one_update_of_all_its_examples(make_bucketed):
    """As with the same batches accumulated; the last one of an epoch has what is left."""

    def make(**settings):
        return make_bucketed({"model": Reader(dropout=0.0)}, num_train_epochs=2, **settings)

    parted, accumulated = make(per_device_train_batch_size=16), make(gradient_accumulation_steps=2)
    accumulated.model.load_state_dict(parted.model.state_dict())
    for trainer in (parted, accumulated):
        trainer.train()
    assert parted.state.global_step == accumulated.state.global_step == 14
    assert logged(parted, "loss") == logged(accumulated, "loss")
    assert logged(parted, "epoch") == logged(accumulated, "epoch")
    assert_same_weights(weights(parted.model), weights(accumulated.model))
