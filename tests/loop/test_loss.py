"""The loss of a model's outputs, and its share in the loss of an update."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM, T5Config
from transformers import T5ForConditionalGeneration as T5

from mps_trainer.loop.loss import (
    NumItemsProbe,
    count_items,
    divisors,
    items_of,
    loss_of,
    predicts_next_token,
    shifts_labels,
)

LOSS = torch.tensor(0.5)


@pytest.mark.parametrize("outputs", [{"loss": LOSS, "logits": 1}, (LOSS, 1), [LOSS], LOSS])
def test_loss_is_found_under_its_name_first_or_alone(outputs):
    assert loss_of(outputs, {}) is LOSS


def test_outputs_without_a_loss_say_what_the_model_returned_and_got():
    for outputs, returned in (
        ({"logits": 1, "states": 2}, "logits, states but no loss"),
        ({"loss": None, "logits": 1}, "logits but no loss"),
        ({}, "no loss"),
    ):
        with pytest.raises(ValueError, match="no loss") as refused:
            loss_of(outputs, {"x": 1, "mask": 1})
        assert str(refused.value) == (
            f"The model returned {returned}. Its inputs were: x, mask. Check that they include the labels under the "
            "name that forward() takes, or override compute_loss."
        )


def test_first_output_that_is_no_single_number_is_refused():
    for outputs in ((torch.zeros(3, 2),), (torch.zeros(1),), (0.5,), torch.zeros(3)):
        with pytest.raises(ValueError, match="first output is not a loss") as refused:
            loss_of(outputs, {"x": 1, "y": 1})
        assert str(refused.value) == (
            "The model's first output is not a loss, which is a tensor with one value. Return the loss first or under "
            "'loss' when labels are given (it was given x, y), or override compute_loss."
        )


def test_items_are_the_labels_that_are_not_ignored():
    labels = torch.tensor([[-100, 5, 6], [7, -100, -100]])
    assert count_items({"labels": labels}, [], shifted=False) == 3
    assert count_items({"labels": labels}, [], shifted=True) == 2  # the first label of a row is no target
    assert count_items({"labels": torch.zeros(4)}, [], shifted=False) == 4
    assert count_items({"target": labels}, ["target"], shifted=False) == 3
    assert count_items({"x": labels}, [], shifted=False) == 2  # examples
    assert count_items([labels], [], shifted=False) is None


def test_batches_weigh_by_their_items():
    assert divisors([8, 8]) == [2.0, 2.0]
    assert divisors([8, 2]) == [1.25, 5.0]
    assert divisors([4, 0]) == [1.0, None]
    assert divisors([None, None]) == [2.0, 2.0]
    assert divisors([0, 0]) == [2.0, 2.0]


def small(kind):
    if kind is T5:
        return T5(T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2))
    config = LlamaConfig if kind is LlamaForCausalLM else BertConfig
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return kind(config(vocab_size=20, **sizes))


@pytest.mark.parametrize(
    ("kind", "expected"), [(LlamaForCausalLM, True), (T5, False), (BertForSequenceClassification, False)]
)
def test_a_causal_language_model_predicts_the_next_token(kind, expected):
    model = small(kind)
    assert shifts_labels(model) is expected
    assert predicts_next_token(model) is expected
    assert predicts_next_token(SimpleNamespace(_orig_mod=model)) is expected  # compiled


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


def test_labels_that_are_no_tensor_or_not_in_host_memory_count_as_examples():
    rows = torch.zeros(3, 2)
    assert count_items({"labels": [0, 1, 1], "x": rows}, [], shifted=False) == 3
    assert count_items({"labels": torch.zeros(5, 4, device="meta"), "x": rows}, [], shifted=False) == 5
    assert count_items({"second": torch.tensor([1, -100])}, ["first", "second"], shifted=False) == 1
    assert count_items({"labels": torch.tensor([1, 1, 1]), "first": rows}, ["first"], shifted=False) == 3
    assert count_items({"labels": torch.tensor([1, -100])}, [], shifted=True) == 1  # flat ones are not shifted


class Takes(nn.Module):
    """Divides by the items, if it is told to."""

    def __init__(self, divides: bool) -> None:
        super().__init__()
        self.divides, self.given = divides, []

    def forward(self, x, num_items_in_batch=None):
        self.given.append(num_items_in_batch)
        return x / num_items_in_batch if self.divides and num_items_in_batch is not None else x


class Compiled(nn.Module):
    """Computes as compiled code does: without telling the tensors that it is given."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._orig_mod, self.calls = model, 0

    def forward(self, x, num_items_in_batch=None):
        self.calls += 1
        items = None if num_items_in_batch is None else torch.Tensor(num_items_in_batch).as_subclass(torch.Tensor)
        return self._orig_mod(x, items)


@pytest.mark.parametrize("items", [8, torch.tensor(8)], ids=["number", "tensor"])
@pytest.mark.parametrize("divides", [True, False])
def test_the_first_batch_tells_whether_a_model_divides_by_the_items(divides, items):
    model = Takes(divides)
    probe = NumItemsProbe(model)
    assert probe.is_used is None
    expected = torch.tensor([1.0 if divides else 8.0])
    for _ in range(3):
        assert torch.equal(probe.forward(model, {"x": torch.tensor([8.0])}, items), expected)
        assert probe.is_used is divides
    assert [each is None for each in model.given] == [False, not divides, not divides]
    if divides:
        assert model.given[1:] == [items, items]


def test_a_model_of_transformers_is_given_a_number_that_need_not_travel_to_the_device():
    given = []
    model = small(LlamaForCausalLM)
    probe = NumItemsProbe(model)
    inner = model.forward
    model.forward = lambda *args, num_items_in_batch=None, **kwargs: (
        given.append(type(num_items_in_batch)),
        inner(*args, num_items_in_batch=num_items_in_batch, **kwargs),
    )[1]
    tokens = {"input_ids": torch.tensor([[1, 2, 3]]), "labels": torch.tensor([[1, 2, 3]])}
    losses = [probe.forward(model, tokens, torch.tensor(4))["loss"] for _ in range(2)]
    assert probe.is_used
    assert given[1] is int
    torch.testing.assert_close(losses[0], losses[1])


def test_the_first_batch_of_compiled_code_is_run_uncompiled():
    model = Compiled(Takes(True))
    probe = NumItemsProbe(model)
    probe.forward(model, {"x": torch.tensor([8.0])}, torch.tensor(8))
    assert (probe.is_used, model.calls) == (True, 0)
    probe.forward(model, {"x": torch.tensor([8.0])}, torch.tensor([8.0]))
    assert model.calls == 1
