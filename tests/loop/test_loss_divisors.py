"""The losses of the batches of an update add up to the mean over its items, in one process and in several."""

from types import SimpleNamespace

import pytest
import torch

from mps_trainer.loop.items import ItemCounter
from mps_trainer.loop.loss_divisors import BatchWeight, UpdateLoss, divisors_of, loss_in_outputs
from mps_trainer.loop.run import TrainingRun
from tests.conftest import refusal

LOSS = torch.tensor(0.5)


@pytest.mark.parametrize("outputs", [{"loss": LOSS, "logits": 1}, (LOSS, 1), [LOSS], LOSS])
def test_loss_is_found_under_its_name_first_or_alone(outputs):
    assert loss_in_outputs(outputs, {}) is LOSS


def test_outputs_without_a_loss_are_refused_with_what_the_model_returned_and_got():
    for outputs, returned in (
        ({"logits": 1, "states": 2}, "logits, states but no loss"),
        ({"loss": None, "logits": 1}, "logits but no loss"),
        ({}, "no loss"),
    ):
        assert refusal(loss_in_outputs, outputs, {"x": 1, "mask": 1}, kind=ValueError) == (
            f"The model returned {returned}. Its inputs were: x, mask. Check that they include the labels under the "
            "name that forward() takes, or override compute_loss."
        )
    for outputs in ((torch.zeros(3, 2),), (torch.zeros(1),), (0.5,), torch.zeros(3)):
        assert refusal(loss_in_outputs, outputs, {"x": 1, "y": 1}, kind=ValueError) == (
            "The model's first output is not a loss, which is a tensor with one value. Return the loss first or under "
            "'loss' when labels are given (it was given x, y), or override compute_loss."
        )


def test_batches_weigh_by_their_items():
    assert divisors_of([8, 8]) == [2.0, 2.0]
    assert divisors_of([8, 2]) == [1.25, 5.0]
    assert divisors_of([4, 0]) == [1.0, None]
    assert divisors_of([None, None]) == [2.0, 2.0]
    assert divisors_of([0, 0]) == [2.0, 2.0]
    batches = [{"target": torch.tensor([1, 2, 3])}, {"target": torch.tensor([1])}]
    assert UpdateLoss(ItemCounter(["target"])).divisors(batches) == [4 / 3, 4.0]
    assert UpdateLoss().divisors([{"labels": torch.tensor([-100])}]) == [1.0]  # one batch is the whole update


@pytest.mark.parametrize(
    ("weight", "of_mean", "of_added_mean"),
    [
        (BatchWeight(), 6, 6),
        (BatchWeight(2.0, accumulated=2), 3, 6),  # transformers adds the means as they are
        (BatchWeight(4.0, accumulated=2, is_split=True), 1.5, 3),  # half of one of two means
        (BatchWeight(4.0, accumulated=1, is_split=True), 1.5, 1.5),
        (BatchWeight(0.75, accumulated=1), 8, 8),  # the only batch, and another process has fewer items
    ],
)
def test_a_mean_weighs_by_its_share_of_the_items_or_of_the_batches(weight, of_mean, of_added_mean):
    assert weight.of_mean(torch.tensor(6.0)) == of_mean
    assert weight.of_added_mean(torch.tensor(6.0)) == of_added_mean


def test_a_loss_that_counts_in_full_stays_what_it_is():
    loss = torch.tensor(6.0)
    assert BatchWeight().of_mean(loss) is BatchWeight().of_added_mean(loss) is loss


class Others:
    """Stands in for the processes of a run: what is summed over them is what this one has and `theirs`."""

    is_distributed = True

    def __init__(self, theirs=(), size: int = 2) -> None:
        self.theirs, self.size, self.asked, self.awaited = list(theirs), size, 0, 0

    def sum(self, numbers):
        return self.sum_later(numbers)()

    def sum_later(self, numbers):
        self.asked += 1

        def answer():
            self.awaited += 1
            return [mine + other for mine, other in zip(numbers, self.theirs, strict=True)]

        return answer


def among(others, averages=True, sampler=None):
    return UpdateLoss(ItemCounter(), others, averages, sampler)


def batch(*labels: int) -> dict[str, torch.Tensor]:
    return {"labels": torch.tensor(labels)}


def test_processes_weigh_by_the_items_of_all_or_each_by_its_own_if_it_is_asked_to():
    others = Others(theirs=[0, 6, 2])  # unknown, items, batches
    found = among(others).divisors([batch(1, 1, 1), batch(1, -100)])
    assert (others.asked, others.awaited) == (1, 0)  # the answer travels while the forward pass runs
    assert [float(each) for each in found] == [10 / (3 * 2), 10 / (1 * 2)]
    others = Others()
    loss = among(others, averages=False)
    assert loss.divisors([batch(1, 1, 1), batch(1, -100)]) == [pytest.approx(4 / 3), 4.0]
    assert loss.items_of_all(torch.tensor(3), True) == 3
    assert others.asked == 0


def padded(others, count):
    """Returns the loss of an update in which the last batch of `count` is another process's, as is the next one."""
    loss = among(others, sampler=SimpleNamespace(filler_batches=[4 + count - 1, 4 + count]))
    with loss.loading_update(4):
        assert loss.is_loading
    assert not loss.is_loading
    return loss


@pytest.mark.parametrize(
    ("theirs", "mine", "is_padded", "expected"),
    [
        # another process cannot count
        ([1, 7, 2], [batch(1, 1, 1), batch(1)], False, [4 / 2, 4 / 2]),
        ([1, 0, 2], [batch(-100), batch(-100, -100)], False, [4 / (1 * 2), 4 / (1 * 2)]),
        ([1, 0, 2], [batch(-100), batch(-100)], True, [3 / (1 * 2), None]),
        # none has an item
        ([0, 0, 2], [batch(-100), batch(-100, -100)], False, [4 / (1 * 2), 4 / (1 * 2)]),
        # a batch has none, or is another process's
        ([0, 2, 1], [batch(-100, -100), batch(1, 1)], False, [None, 4 / (2 * 2)]),
        ([0, 5, 2], [batch(1, 1, 1), batch(1, 1)], True, [8 / (3 * 2), None]),
    ],
)
def test_batches_that_cannot_be_counted_count_the_same_and_those_without_items_have_no_share(
    theirs, mine, is_padded, expected
):
    loss = padded(Others(theirs), len(mine)) if is_padded else among(Others(theirs))
    assert [each and float(each) for each in loss.divisors(mine)] == expected


def test_a_filler_is_no_batch_of_this_process():
    loss = padded(Others(), 2)
    assert loss.filler_positions(2) == {1}
    assert loss.filler_positions(3) == {1, 2}
    assert loss.own_batches(["a", "b"]) == ["a"]


@pytest.mark.parametrize(
    ("theirs", "mine", "expected"),
    [
        ([5.0, 0, 1], torch.tensor(3), torch.tensor(8)),
        ([5.0, 1, 1], torch.tensor(3), None),  # another process does not know its own
        ([5.0, 0, 1], None, None),
    ],
)
def test_items_are_summed_over_all_processes_if_they_are_known(theirs, mine, expected):
    assert among(Others(theirs)).items_of_all(mine, True) == expected


@pytest.mark.parametrize("theirs", [0, 1])
def test_items_are_asked_for_until_no_process_uses_them(theirs):
    others = Others(theirs=[0.0, 1, theirs])
    loss = among(others)
    loss.items_of_all(torch.tensor(1), True, may_be_ignored=True)
    assert others.asked == 1
    for _ in range(2):
        loss.items_of_all(None, False, may_be_ignored=True)
    assert others.asked == 2 + theirs
    loss.items_of_all(None, False)  # a subclass decides, or a function that a callback has set
    assert others.asked == 3 + theirs


def test_a_process_that_has_nothing_to_learn_adds_nothing(make_trainer):
    trainer = make_trainer()
    batch = {"x": torch.full((2, 4), float("inf")), "labels": torch.tensor([0, 1])}
    TrainingRun(trainer).zero_gradient_backward(batch, None)
    gradients = [parameter.grad for parameter in trainer.model.parameters()]
    assert all(gradient is not None and not gradient.any() for gradient in gradients)
