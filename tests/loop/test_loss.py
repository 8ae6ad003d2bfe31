"""The loss of a model's outputs, and its share in the loss of an update."""

import pytest
import torch

from mps_trainer.loop.loss import count_items, divisors, loss_of

LOSS = torch.tensor(0.5)


@pytest.mark.parametrize("outputs", [{"loss": LOSS, "logits": 1}, (LOSS, 1), [LOSS], LOSS])
def test_loss_is_found_under_its_name_first_or_alone(outputs):
    assert loss_of(outputs, {}) is LOSS


def test_outputs_without_a_loss_say_what_the_model_returned_and_got():
    with pytest.raises(
        ValueError, match=r"no loss, only logits, states\. It was given x, mask: check that the labels"
    ):
        loss_of({"logits": 1, "states": 2}, {"x": 1, "mask": 1})


def test_first_output_that_is_no_single_number_is_refused():
    with pytest.raises(ValueError, match="first output is not a loss"):
        loss_of((torch.zeros(3, 2),), {"x": 1})


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
