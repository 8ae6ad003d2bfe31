"""The items of an update, and models that divide their loss by them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from mps_trainer.loop.loss import NumItemsProbe, items_of, predicts_next_token, shifts_labels

LABELS = torch.tensor([[-100, 5, 6], [7, -100, -100]])


def test_items_are_the_labels_of_all_batches_that_are_not_ignored():
    assert items_of([{"labels": LABELS}], shifted=False).item() == 3
    assert items_of([{"labels": LABELS}, {"labels": LABELS[:1]}], shifted=False).item() == 5


def test_the_first_label_of_a_row_is_no_target_where_the_model_shifts():
    assert items_of([{"labels": LABELS}], shifted=True).item() == 2
    assert items_of([{"labels": torch.tensor([1, 2, 3])}], shifted=True).item() == 3  # one label for each example


def test_labels_that_are_shifted_already_go_first():
    batch = {"labels": LABELS, "shift_labels": torch.ones(2, 3)}
    assert items_of([batch], shifted=True).item() == 6


@pytest.mark.parametrize("batch", [[LABELS], {"x": LABELS}, {"labels": [1, 2]}])
def test_without_labels_of_every_batch_nothing_is_counted(batch):
    assert items_of([{"labels": LABELS}, batch], shifted=False) is None


class Divides(nn.Module):
    def forward(self, x, num_items_in_batch=None):
        self.given = num_items_in_batch
        return {"loss": x.sum() / (num_items_in_batch if num_items_in_batch is not None else 1)}


class TakesAndLeaves(nn.Module):
    def forward(self, x, num_items_in_batch=None):
        self.given = num_items_in_batch
        if num_items_in_batch is not None:
            assert num_items_in_batch.device == x.device  # looking at it is no use of it
            assert num_items_in_batch.shape == ()
            assert not num_items_in_batch.is_floating_point()
        return {"loss": x.mean()}


def test_a_model_that_divides_is_given_the_items_from_then_on():
    use, model = NumItemsProbe(Divides()), Divides()
    assert use.is_used is None
    assert use.forward(model, {"x": torch.ones(4)}, torch.tensor(8))["loss"].item() == 0.5
    assert use.is_used is True
    items = torch.tensor(16)
    assert use.forward(model, {"x": torch.ones(4)}, items)["loss"].item() == 0.25
    assert model.given is items


def test_a_model_that_does_nothing_with_the_items_is_not_given_them_again():
    model = TakesAndLeaves()
    use = NumItemsProbe(model)
    use.forward(model, {"x": torch.ones(4)}, 8)
    assert use.is_used is False
    use.forward(model, {"x": torch.ones(4)}, 8)
    assert model.given is None


def test_models_of_transformers_take_a_plain_number_from_the_host_and_the_tensor_from_a_device():
    class Noted(GPT2LMHeadModel):
        def forward(self, *args, num_items_in_batch=None, **kwargs):
            noted.append(num_items_in_batch)
            return super().forward(*args, num_items_in_batch=num_items_in_batch, **kwargs)

    Noted.__module__ = GPT2LMHeadModel.__module__
    noted: list[object] = []
    model = Noted(GPT2Config(vocab_size=8, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    use, rows = NumItemsProbe(model), torch.ones(2, 4, dtype=torch.int64)
    for items in (torch.tensor(6), torch.tensor(6), 6, torch.empty((), device="meta")):
        inputs = {"input_ids": rows, "labels": rows}
        use.forward(model.to("meta") if getattr(items, "is_meta", False) else model, to(inputs, items), items)
    assert use.is_used is True
    assert noted[1:3] == [6, 6]
    assert type(noted[1]) is type(noted[2]) is int
    assert noted[3].is_meta


def to(inputs, items):
    device = items.device if isinstance(items, torch.Tensor) else "cpu"
    return {name: tensor.to(device) for name, tensor in inputs.items()}


def small(kind, config, **settings):
    with torch.device("meta"):
        return kind(config(**settings))


def test_which_models_predict_the_next_token():
    llama = small(LlamaForCausalLM, LlamaConfig, num_hidden_layers=1, num_attention_heads=1, hidden_size=8)
    bert = small(BertForSequenceClassification, BertConfig, num_hidden_layers=1)
    assert (shifts_labels(llama), predicts_next_token(llama)) == (True, True)
    assert (shifts_labels(bert), predicts_next_token(bert)) == (False, False)
    assert (shifts_labels(nn.Linear(1, 1)), predicts_next_token(nn.Linear(1, 1))) == (False, False)
    llama.config.is_encoder_decoder = True
    assert not shifts_labels(llama)
