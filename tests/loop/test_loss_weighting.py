"""The share of a batch in an update, in one process of several; tests/distributed runs several."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from mps_trainer import Trainer
from mps_trainer.loop.run import TrainingRun


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


@pytest.fixture
def among(make_trainer, monkeypatch):
    """Makes a Trainer that believes to be one of several processes."""

    def make(others: Others, trainer=None, **settings):
        trainer = make_trainer(trainer, **settings)
        monkeypatch.setattr(trainer, "_mt_processes", others)
        return trainer

    return make


def batch(*labels: int) -> dict[str, torch.Tensor]:
    return {"labels": torch.tensor(labels)}


def divisors(trainer, *batches):
    return [None if each is None else float(each) for each in trainer._mt_divisors(list(batches))]


def test_one_process_weighs_its_batches_by_their_items(make_trainer):
    trainer = make_trainer()
    assert trainer._mt_divisors([batch(1, 1, -100)]) == [1.0]
    assert trainer._mt_divisors([batch(1, 1, 1), batch(1, -100)]) == [pytest.approx(4 / 3), 4.0]


def test_the_average_over_processes_is_the_mean_over_the_items_of_all(among):
    others = Others(theirs=[0, 6, 2])  # unknown, items, batches
    found = among(others)._mt_divisors([batch(1, 1, 1), batch(1, -100)])
    assert (others.asked, others.awaited) == (1, 0)  # the answer travels while the forward pass runs
    assert [float(each) for each in found] == [10 / (3 * 2), 10 / (1 * 2)]


def test_a_batch_with_items_counts_as_any_other_if_another_process_cannot_count(among):
    others = Others(theirs=[1, 7, 2])
    assert divisors(among(others), batch(1, 1, 1), batch(1)) == [4 / 2, 4 / 2]


@pytest.mark.parametrize("theirs", [[1, 0, 2], [0, 0, 2]])
def test_batches_count_the_same_where_one_process_cannot_count_or_none_has_an_item(among, theirs):
    mine = [batch(-100), batch(-100, -100)]
    assert among(Others(theirs=theirs))._mt_divisors(mine) == [4 / (1 * 2), 4 / (1 * 2)]


def test_each_process_weighs_for_itself_if_it_is_asked_to(among):
    others = Others()
    trainer = among(others, average_tokens_across_devices=False)
    assert trainer._mt_divisors([batch(1, 1, 1), batch(1, -100)]) == [pytest.approx(4 / 3), 4.0]
    assert others.asked == 0


def test_a_batch_without_items_has_no_share(among):
    assert divisors(among(Others(theirs=[0, 2, 1])), batch(-100, -100), batch(1, 1)) == [None, 4 / (2 * 2)]


def items(trainer, *batches):
    return trainer.get_batch_samples(iter(batches), len(batches), trainer.args.device)[1]


def test_items_are_summed_over_all_processes(among):
    others = Others(theirs=[5.0, 0, 1])
    trainer = among(others)
    assert items(trainer, batch(1, 1, 1)) is None  # nobody asks for them
    assert others.asked == 0
    trainer.model_accepts_loss_kwargs = True
    assert torch.equal(items(trainer, batch(1, 1, 1)), torch.tensor(8))


def test_items_are_unknown_if_one_process_does_not_know_them(among):
    trainer = among(Others(theirs=[5.0, 1, 1]))
    trainer.model_accepts_loss_kwargs = True
    assert items(trainer, batch(1, 1, 1)) is None
    trainer = among(Others(theirs=[5.0, 0, 1]))
    trainer.model_accepts_loss_kwargs = True
    assert items(trainer, {"x": torch.ones(3)}) is None


@pytest.mark.parametrize("theirs", [0, 1])
def test_items_are_asked_for_until_no_process_uses_them(among, theirs):
    others = Others(theirs=[0.0, 1, theirs])
    trainer = among(others)
    trainer.model_accepts_loss_kwargs = True
    items(trainer, batch(1))
    assert others.asked == 1  # this process may use them until its first loss
    trainer._mt_num_items_probe.is_used = False
    items(trainer, batch(1))
    items(trainer, batch(1))
    assert others.asked == 2 + theirs


def test_items_are_asked_for_again_from_the_step_on_in_which_a_callback_sets_a_loss(among):
    others = Others(theirs=[5.0, 0, 0])
    trainer = among(others)
    trainer.model_accepts_loss_kwargs = True
    trainer._mt_items_are_unused = True
    assert items(trainer, batch(1, 1, 1)).item() == 3
    trainer.compute_loss_func = lambda outputs, labels, num_items_in_batch: None
    assert items(trainer, batch(1, 1, 1)).item() == 8


def test_a_run_asks_again_if_its_loss_uses_the_items(make_trainer):
    trainer = make_trainer(max_steps=1)
    trainer._mt_items_are_unused = True  # by an earlier run, whose loss may have been another one
    trainer.train()
    assert not trainer._mt_items_are_unused


@pytest.mark.parametrize("name", ["_get_num_items_in_batch", "compute_loss"])
def test_items_are_always_asked_for_if_a_method_that_may_use_them_is_overridden(among, name):
    others = Others(theirs=[5.0, 0, 0])
    kind = type("Own", (Trainer,), {name: lambda self, *_: torch.tensor(3)})
    trainer = among(others, trainer={"kind": kind})
    trainer.model_accepts_loss_kwargs = True
    trainer._mt_num_items_probe.is_used = False
    for asked in (1, 2):
        assert items(trainer, batch(1, 1, 1)).item() == 8
        assert others.asked == asked


def test_items_stay_those_of_this_process_if_it_is_asked_to(among):
    trainer = among(Others(), average_tokens_across_devices=False)
    trainer.model_accepts_loss_kwargs = True
    assert torch.equal(items(trainer, batch(1, 1, 1)), torch.tensor(3))


class Counts(nn.Module):
    """Its loss is normalised over the items that it is given."""

    accepts_loss_kwargs = True

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x, labels=None, num_items_in_batch=None, **kwargs):
        logits = self.layer(x)
        if labels is None:
            return {"logits": logits}
        loss = nn.functional.cross_entropy(logits, labels, reduction="sum")
        return {"loss": loss / (len(labels) if num_items_in_batch is None else num_items_in_batch), "logits": logits}


def test_a_smoothed_loss_is_normalised_over_the_items_of_the_update_where_the_model_takes_them(make_trainer):
    trainer = make_trainer({"model": Counts()}, label_smoothing_factor=0.2)
    assert trainer.model_accepts_loss_kwargs
    inputs = {"x": torch.randn(4, 4), "labels": torch.tensor([0, 1, 1, -100])}
    logits = trainer.model(inputs["x"])["logits"]
    total = nn.functional.cross_entropy(logits, inputs["labels"], label_smoothing=0.2, reduction="sum")
    for items, divisor in ((12, 12), (None, 3)):
        loss = trainer.compute_loss(trainer.model, dict(inputs), num_items_in_batch=items)
        torch.testing.assert_close(loss, total / divisor)
        assert trainer._mt_is_share_of_update(items) is (items is not None)


def test_a_smoothed_loss_is_the_mean_of_its_batch_where_the_model_takes_no_items(make_trainer):
    trainer = make_trainer(label_smoothing_factor=0.2)
    inputs = {"x": torch.randn(4, 4), "labels": torch.tensor([0, 1, 1, 0])}
    logits = trainer.model.eval()(inputs["x"])["logits"]
    loss = trainer.compute_loss(trainer.model, dict(inputs), num_items_in_batch=12)
    torch.testing.assert_close(loss, nn.functional.cross_entropy(logits, inputs["labels"], label_smoothing=0.2))
    assert not trainer._mt_is_share_of_update(12)


def test_a_process_that_has_nothing_to_learn_adds_nothing(make_trainer):
    trainer = make_trainer()
    batch = {"x": torch.full((2, 4), float("inf")), "labels": torch.tensor([0, 1])}
    TrainingRun(trainer).zero_gradient_backward(batch, None)
    gradients = [parameter.grad for parameter in trainer.model.parameters()]
    assert all(gradient is not None and not gradient.any() for gradient in gradients)


class OwnLoss(Trainer):
    """Has a loss of its own, which says nothing of what it is divided by."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return model(**inputs)["loss"]


def test_a_loss_of_a_subclass_counts_as_normalised_where_the_model_takes_items_and_warns(make_trainer, monkeypatch):
    trainer = make_trainer({"model": Counts(), "kind": OwnLoss})
    trainer._mt_loss_divisor = 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trainer._mt_is_share_of_update(8)
        assert not trainer._mt_is_share_of_update(None)
    trainer._mt_loss_divisor = 2
    with pytest.warns(UserWarning, match="OwnLoss.compute_loss is assumed to divide by num_items_in_batch") as told:
        assert trainer._mt_is_share_of_update(8)
    assert "If it returns the mean of its batch, accumulated losses are too large: " in str(told[0].message)
    monkeypatch.setattr(OwnLoss, "loss_is_scaled_for_ga", False)
    assert not trainer._mt_is_share_of_update(8)


class Divides(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return model(**inputs)["loss"] / num_items_in_batch


class Hands(Divides):
    """Hands everything on, without a name for it."""

    def compute_loss(self, *args, **kwargs):
        return Divides.compute_loss(self, *args, **kwargs)


class Measures(OwnLoss):
    """Uses the number in its own words, inside another function."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return (lambda loss: loss / num_items_in_batch)(model(**inputs)["loss"])


class Ignores(Divides):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        return model(**inputs)["loss"]


class HasOthers(Trainer):
    """Reads other arguments, attributes and None."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        weight = inputs.pop("weight", None)
        return model.num_items_in_batch if weight is None else weight


@pytest.mark.parametrize(
    ("kind", "warned"),
    [(Divides, False), (Hands, False), (Measures, False), (Ignores, True), (OwnLoss, True), (HasOthers, True)],
)
def test_only_a_loss_that_does_not_read_the_number_of_items_warns(make_trainer, kind, warned):
    trainer = make_trainer({"model": Counts(), "kind": kind})
    trainer._mt_loss_divisor = 2
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert trainer._mt_is_share_of_update(8)
    assert bool(told) == warned


class Filled:
    """A run in which the last batch of an update is another process's."""

    run_state = SimpleNamespace(update_start=4)

    def padding_after(self, begin, count):
        assert begin == 4
        return {count - 1}

    def padding_among_last(self, count):
        return {count - 1}


def test_a_batch_of_another_process_counts_there(among, monkeypatch):
    trainer = among(Others(theirs=[0, 5, 2]))
    monkeypatch.setattr(trainer, "_mt_run", Filled())
    assert divisors(trainer, batch(1, 1, 1), batch(1, 1)) == [8 / (3 * 2), None]


def test_batches_that_count_the_same_leave_out_those_of_another_process(among, monkeypatch):
    trainer = among(Others(theirs=[1, 0, 2]))
    monkeypatch.setattr(trainer, "_mt_run", Filled())
    assert trainer._mt_divisors([batch(-100), batch(-100)]) == [3 / (1 * 2), None]


def test_items_of_an_update_leave_out_those_of_another_process(among, monkeypatch):
    trainer = among(Others(theirs=[5.0, 0, 1]))
    trainer.model_accepts_loss_kwargs = True
    monkeypatch.setattr(trainer, "_mt_run", Filled())
    batches, items = trainer.get_batch_samples(iter([batch(1, 1, 1), batch(1, 1), batch(1)]), 2, torch.device("cpu"))
    assert len(batches) == 2
    assert items.item() == 8
    _, items = trainer.get_batch_samples(iter([batch(1, 1)]), 1, torch.device("cpu"))
    assert items.item() == 5  # none of its own


def test_items_are_counted_for_one_process_alone(make_trainer):
    trainer = make_trainer({"model": Counts()})
    batches, items = trainer.get_batch_samples(iter([batch(1, 1, -100), batch(1)]), 4, torch.device("cpu"))
    assert len(batches) == 2
    assert items.item() == 3


def test_a_model_that_divides_by_the_items_has_a_loss_that_is_normalised(make_trainer):
    trainer = make_trainer({"model": Counts()})
    inputs = {"x": torch.randn(2, 4), "labels": torch.tensor([0, 1])}
    whole = trainer.compute_loss(trainer.model, inputs)
    assert not trainer._mt_is_share_of_update(None)
    share = trainer.compute_loss(trainer.model, inputs, num_items_in_batch=8)
    assert trainer._mt_is_share_of_update(8)
    torch.testing.assert_close(share, whole * 2 / 8)
