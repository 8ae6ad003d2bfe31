"""Items are counted as the loss of the model counts them."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from mps_trainer.loop.items import ItemCounter, count_items, items_of
from mps_trainer.model.introspection import predicts_next_token, shifts_labels
from tests.tiny import tiny

LABELLED, ROWS = torch.tensor([[-100, 5, 6], [7, -100, -100]]), torch.zeros(3, 2)


@pytest.mark.parametrize(
    ("batch", "names", "shifted", "expected"),
    [
        ({"labels": LABELLED}, [], False, 3),
        ({"labels": LABELLED}, [], True, 2),  # the first label of a row is no target
        ({"labels": torch.tensor([1, -100])}, [], True, 1),  # flat ones are not shifted
        ({"labels": torch.zeros(4)}, [], False, 4),
        ({"target": LABELLED}, ["target"], False, 3),
        ({"second": torch.tensor([1, -100])}, ["first", "second"], False, 1),
        ({"labels": torch.tensor([1, 1, 1]), "first": ROWS}, ["first"], False, 3),
        ([LABELLED], [], False, None),
        # examples
        ({"x": LABELLED}, [], False, 2),
        ({"labels": [0, 1, 1], "x": ROWS}, [], False, 3),
        ({"labels": torch.zeros(5, 4, device="meta"), "x": ROWS}, [], False, 5),
    ],
)
def test_items_are_the_labels_that_are_not_ignored_or_examples_where_those_cannot_be_read(
    batch, names, shifted, expected
):
    assert count_items(batch, names, shifted) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("LlamaForCausalLM", [2, 1]),
        ("GPT2LMHeadModel", [2, 1]),  # no loss is known by its name
        ("XLMWithLMHeadModel", [3, 2]),  # its loss does not shift the labels
        ("T5ForConditionalGeneration", [3, 2]),
        ("BertForSequenceClassification", [3, 2]),
        ("Wav2Vec2ForCTC", [2, 1]),  # the mean over examples
    ],
)
def test_items_of_a_batch_are_the_labels_or_examples_that_the_loss_of_the_model_averages(kind, expected):
    batches, model = [{"labels": LABELLED}, {"labels": torch.tensor([[1, 2]])}], tiny(kind)
    assert ItemCounter.of(model, []).each(batches) == expected
    is_causal = kind.endswith(("CausalLM", "LMHeadModel"))
    assert predicts_next_token(model) is predicts_next_token(SimpleNamespace(_orig_mod=model)) is is_causal


def test_a_counter_looks_for_labels_under_the_names_of_the_trainer():
    batches = [{"target": LABELLED}, {"target": torch.tensor([1])}]
    assert ItemCounter.of(nn.Linear(1, 1), ["target"]).each(batches) == [3, 1]


@pytest.mark.parametrize("config", [{}, {"config": None}, {"config": SimpleNamespace()}])
def test_a_model_of_ones_own_shifts_labels_only_if_its_loss_is_transformers_causal_one(config):
    model = nn.Linear(1, 1)
    vars(model).update(config)
    assert not shifts_labels(model)
    model.loss_type = "ForSequenceClassification"
    assert not shifts_labels(model)
    model.loss_type = "ForCausalLM"
    assert shifts_labels(model)
    model.config = SimpleNamespace(is_encoder_decoder=True)
    assert not shifts_labels(model)


def test_items_of_an_update_are_the_labels_of_all_its_batches_that_count():
    labels = torch.tensor([[3, 5, -100], [7, -100, -100]])
    whole, flat = {"labels": labels}, {"labels": torch.tensor([1, -100])}
    assert items_of([whole, flat], shifted=False) == 4
    assert items_of([whole, flat], shifted=True) == 2  # one of each row, and a row of its own stays whole
    assert items_of([{"shift_labels": torch.tensor([[1, 2]]), **whole}], shifted=True) == 2
    assert items_of([whole, {"x": labels}], shifted=False) is None
    assert items_of([whole, [labels]], shifted=False) is None
    assert items_of([{"labels": [1, 2]}], shifted=False) is None
