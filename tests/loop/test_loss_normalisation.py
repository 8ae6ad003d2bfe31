"""The first batch shows whether the code that computes a loss divides it by the items of the update."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mps_trainer import Trainer
from mps_trainer.distributed import Processes
from mps_trainer.loop import loss_normalisation
from mps_trainer.loop.loss_divisors import BatchWeight
from mps_trainer.loop.loss_normalisation import LossNormalisation, LossSettings
from mps_trainer.overrides import Overrides
from tests.conftest import refusal
from tests.loop.test_loss_divisors import LOSS, Others, batch, padded
from tests.tiny import tiny

OWN_LOSS = Overrides(compute_loss=True, compute_losses_or_items=True)
MODEL = nn.Linear(1, 1)


class Takes(nn.Module):
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
def test_the_first_batch_shows_whether_a_model_divides_by_the_items(divides, items):
    model = Takes(divides)
    loss = LossNormalisation()
    assert loss.model_divides is None
    expected = torch.tensor([1.0 if divides else 8.0])
    for _ in range(3):
        assert torch.equal(loss.outputs(model, {"x": torch.tensor([8.0])}, items, LossSettings()), expected)
        assert loss.model_divides is divides
    assert [each is None for each in model.given] == [False, not divides, not divides]
    if divides:
        assert model.given[1:] == [items, items]


def test_a_model_that_only_looks_at_the_items_does_not_use_them():
    class Looks(nn.Module):
        def forward(self, x, num_items_in_batch):
            assert (num_items_in_batch.device, num_items_in_batch.shape) == (x.device, ())
            assert not num_items_in_batch.is_floating_point()

    loss = LossNormalisation()
    loss.outputs(Looks(), {"x": torch.ones(4)}, torch.tensor(8), LossSettings())
    assert loss.model_divides is False


def test_a_sharded_model_gets_the_items_on_the_device_of_its_inputs(monkeypatch):
    model = Takes(False)
    monkeypatch.setattr("mps_trainer.loop.loss_normalisation.is_sharded", lambda each: each is model)
    LossNormalisation().outputs(model, {"x": torch.ones(4, device="meta")}, torch.tensor(8), LossSettings())
    assert model.given[0].is_meta


def test_a_batch_without_names_is_refused_in_one_line():
    assert refusal(LossNormalisation().outputs, Takes(False), [LOSS, LOSS], None, LossSettings(), kind=TypeError) == (
        "A batch is a list, and Takes needs the names of its inputs. Let the data_collator return a dictionary, or "
        "override compute_loss."
    )


def test_a_model_of_transformers_gets_a_plain_number_from_the_host_and_the_tensor_from_a_device():
    given = []
    model = tiny("LlamaForCausalLM")
    inner = model.forward
    model.forward = lambda *args, num_items_in_batch=None, **kwargs: (
        given.append(num_items_in_batch),
        inner(*args, num_items_in_batch=num_items_in_batch, **kwargs),
    )[1]
    loss, values = LossNormalisation(), []
    tokens = {"input_ids": torch.tensor([[1, 2, 3]]), "labels": torch.tensor([[1, 2, 3]])}
    for items in (torch.tensor(4), torch.tensor(4), 4):
        values.append(loss.outputs(model, tokens, items, LossSettings())["loss"])
    on_device = {name: tensor.to("meta") for name, tensor in tokens.items()}
    loss.outputs(model.to("meta"), on_device, torch.empty((), device="meta"), LossSettings())
    assert loss.model_divides
    assert [type(each) for each in given[1:3]] == [int, int]
    assert given[3].is_meta
    torch.testing.assert_close(values[0], values[1])


def test_the_first_batch_of_compiled_code_is_run_uncompiled():
    model = Compiled(Takes(True))
    loss = LossNormalisation()
    loss.outputs(model, {"x": torch.tensor([8.0])}, torch.tensor(8), LossSettings())
    assert (loss.model_divides, model.calls) == (True, 0)
    loss.outputs(model, {"x": torch.tensor([8.0])}, torch.tensor([8.0]), LossSettings())
    assert model.calls == 1


class Replica(DistributedDataParallel):
    """Stands in for a replica, without a group of processes."""

    def __init__(self, module):
        nn.Module.__init__(self)
        self.module = module

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)


def test_compiled_code_in_a_replica_gets_no_plain_number():
    given = []

    class Model(nn.Module):
        def forward(self, x, num_items_in_batch=None):
            given.append(num_items_in_batch)
            return {"loss": x.sum() / num_items_in_batch}

    Model.__module__ = "transformers.models.some"
    compiled = nn.Module()
    compiled._orig_mod = Model()
    compiled.forward = compiled._orig_mod.forward
    model = Replica(compiled)
    loss = LossNormalisation()
    for _ in range(2):
        loss.outputs(model, {"x": torch.tensor([8.0])}, torch.tensor(8), LossSettings())
    assert all(map(torch.is_tensor, given))


# The items of an update


def test_items_are_counted_if_a_loss_may_use_them():
    losses, batches = LossNormalisation(), [batch(1, 1, 1)]
    assert losses.items(batches, MODEL, LossSettings()) == 3
    assert losses.items(batches, MODEL, LossSettings(accepts_items=False)) is None
    losses.model_divides = False
    assert losses.items(batches, MODEL, LossSettings()) is None
    assert losses.items(batches, MODEL, LossSettings(function=print)) == 3


def test_processes_exchange_items_that_the_model_may_use():
    others, losses = Others(theirs=[5.0, 0, 1]), LossNormalisation()
    assert losses.items([batch(1, 1, 1), batch(1, 1)], MODEL, LossSettings(), padded(others, 2)) == 8
    assert losses.items([batch(1, 1)], MODEL, LossSettings(), padded(others, 1)) == 5  # none of its own
    assert losses.items([batch(1)], MODEL, LossSettings(accepts_items=False), padded(others, 2)) is None
    assert others.asked == 2


def test_items_are_asked_for_again_from_the_step_on_in_which_a_callback_sets_a_loss():
    others, losses = Others(theirs=[5.0, 0, 0]), LossNormalisation(model_divides=False)
    update = padded(others, 2)
    for asked in (1, 1):  # no process uses them
        assert losses.items([batch(1, 1, 1)], MODEL, LossSettings(), update) is None
        assert others.asked == asked
    assert losses.items([batch(1, 1, 1)], MODEL, LossSettings(function=print), update) == 8


def test_items_are_always_asked_for_if_a_subclass_computes_the_loss():
    others, losses = Others(theirs=[5.0, 0, 0]), LossNormalisation(model_divides=False)
    update = padded(others, 2)
    for asked in (1, 2):
        assert losses.items([batch(1, 1, 1)], MODEL, LossSettings(overrides=OWN_LOSS), update) == 8
        assert others.asked == asked


# The loss of a batch


class OwnLoss(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return model(**inputs)["loss"]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_run_warns_once_of_a_loss_that_ignores_the_number_of_items(make_trainer, make_model, accumulation):
    model = make_model()
    model.accepts_loss_kwargs = True
    trainer = make_trainer({"model": model, "kind": OwnLoss}, max_steps=2, gradient_accumulation_steps=accumulation)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trainer.train()
    warned = [str(each.message) for each in told if "num_items_in_batch" in str(each.message)]
    assert len(warned) == accumulation - 1
    for text in warned:
        assert "OwnLoss.compute_loss is assumed to divide by num_items_in_batch" in text
        assert "If it returns the mean of its batch, accumulated losses are too large: " in text


OUTPUTS, LABELS = {"loss": torch.tensor(6.0)}, torch.tensor([1])
HALF = BatchWeight(2.0)


def scaled(losses, settings, labels=None, given=8, items=8, weight=HALF):
    """Returns a loss of 6 in an update with a divisor of 2, where compute_loss is given `given` of `items`."""
    losses.begin_batch(MODEL, 8, settings)
    loss = losses.loss_of(MODEL, OUTPUTS, {}, labels, given, settings)
    return losses.weighted(loss, weight, items, settings, "Own")


def own(losses, settings, loss=OUTPUTS["loss"], items=8, weight=HALF, uses=False):
    """Returns the loss of a subclass's compute_loss in an update with a divisor of 2."""
    given = losses.begin_batch(MODEL, items, settings).num_items
    if uses:
        loss = loss * torch.div(given, other=8)
    return losses.weighted(loss, weight, items, settings, "Own")


@pytest.mark.parametrize("accepted", [True, False])
@pytest.mark.parametrize("used", [None, True, False])
def test_a_models_loss_is_normalised_if_the_model_used_the_items(accepted, used):
    losses, settings = LossNormalisation(used), LossSettings(accepts_items=accepted)
    assert scaled(losses, settings) == (6 if used else 3)
    assert losses.may_use_items(settings) is (accepted and used is not False)
    assert scaled(losses, settings, items=None) == 3


def test_a_function_of_the_users_is_normalised_if_it_is_given_the_items():
    given = []

    def function(outputs, labels, num_items_in_batch):
        given.append(num_items_in_batch)
        return outputs["loss"]

    losses, settings = LossNormalisation(), LossSettings(function, smoother="unused", accepts_items=False)
    assert settings.takes_labels
    assert losses.may_use_items(settings)
    assert (scaled(losses, settings, LABELS), scaled(losses, settings, LABELS, None, None)) == (6, 3)
    assert given == [8, None]


@pytest.mark.parametrize(("accepted", "normalises"), [(True, True), (False, True), (True, False)])
def test_a_smoother_gets_the_items_where_it_and_the_model_accept_them(monkeypatch, accepted, normalises):
    # False in the first releases of transformers 5
    monkeypatch.setattr(loss_normalisation, "_SMOOTHER_NORMALISES", normalises)
    given, both = [], accepted and normalises

    def smoother(outputs, labels, shift_labels, num_items_in_batch=None):
        given.append(num_items_in_batch)
        return outputs["loss"]

    losses = LossNormalisation(model_divides=False)
    settings = LossSettings(smoother=smoother, accepts_items=accepted)
    assert settings.takes_labels
    assert losses.may_use_items(settings) is accepted
    assert scaled(losses, settings, LABELS) == (6 if both else 3)
    assert given == [8 if both else None]
    assert scaled(losses, settings) == scaled(losses, settings, LABELS, None) == 3  # the model's own loss, or no items
    for items in (torch.tensor(2), torch.tensor(2.5)):  # plain numbers need not come to the device
        scaled(losses, settings, LABELS, items)
        assert repr(given[-1]) == repr(items.item() if both else None)


@pytest.mark.filterwarnings("ignore:.*is assumed to divide")
@pytest.mark.parametrize("accepted", [True, False])
def test_a_subclass_is_taken_to_divide_where_its_model_accepts_the_items(accepted):
    losses = LossNormalisation(model_divides=False)
    settings, weight = LossSettings(accepts_items=accepted, overrides=OWN_LOSS), BatchWeight(2.0, accumulated=2)
    assert losses.may_use_items(settings) is accepted  # else a loss that divides by them would be divided twice
    for _ in range(2):
        assert own(losses, settings, weight=weight) == (6 if accepted else 3)
        assert own(losses, settings, items=None, weight=weight) == 3


@pytest.mark.filterwarnings("ignore:.*is assumed to divide")
def test_the_means_of_a_subclass_are_added_and_halved_batches_have_their_part_of_them():
    losses, settings = LossNormalisation(), LossSettings(overrides=OWN_LOSS)
    weight = BatchWeight(8.0, accumulated=2, is_split=True)
    assert [own(losses, settings, weight=weight).item() for _ in range(2)] == [1.5, 1.5]  # the second is not watched
    assert own(LossNormalisation(), settings, weight=weight, uses=True) == 6


def test_a_batch_that_super_computes_tells_nothing_of_the_losses_of_a_subclass():
    losses, settings = LossNormalisation(model_divides=False), LossSettings(overrides=OWN_LOSS)
    weight, items = BatchWeight(8.0, accumulated=2, is_split=True), torch.tensor(8)
    losses.begin_batch(MODEL, items, settings)
    losses.loss_of(MODEL, OUTPUTS, {}, None, items, settings)
    losses.weighted(OUTPUTS["loss"], weight, items, settings, "Own")
    assert own(losses, settings, weight=weight, uses=True) == 6
    assert own(losses, settings, weight=weight) == 6  # it is taken to divide, as in transformers


def test_a_subclass_that_replaces_a_method_around_the_loss_may_use_the_items():
    losses = LossNormalisation(model_divides=False)
    assert losses.may_use_items(LossSettings(overrides=Overrides(compute_losses_or_items=True)))
    assert not losses.may_use_items(LossSettings())
    assert losses.may_use_items(LossSettings(overrides=OWN_LOSS, accepts_items=False, declared=True))


@pytest.mark.parametrize("declared", [True, False])
def test_what_a_class_declares_comes_first(declared):
    losses, settings = LossNormalisation(model_divides=not declared), LossSettings(declared=declared)
    assert scaled(losses, settings) == scaled(losses, settings, items=None) == (6 if declared else 3)


@pytest.mark.parametrize(
    ("trains", "given", "counts_items", "expected"),
    [
        (True, 8, False, True),
        (False, 8, False, False),  # an evaluation gives the items of this process, unless an override counts them
        (False, 8, True, True),
        (True, None, False, False),
    ],
)
def test_a_normalised_loss_is_a_part_of_a_sum_over_the_processes(trains, given, counts_items, expected):
    losses, settings = (
        LossNormalisation(model_divides=True),
        LossSettings(overrides=Overrides(get_num_items_in_batch=counts_items)),
    )
    model = nn.Linear(1, 1).train(trains)
    losses.loss_of(model, OUTPUTS, {}, None, given, settings)
    assert losses.is_part_of_sum(model, given, settings) is expected


@pytest.mark.parametrize("declared", [True, False, None])
def test_a_function_may_be_declared_to_return_the_mean(declared):
    settings = LossSettings(lambda outputs, *_, **__: outputs["loss"], declared=declared)
    losses = LossNormalisation()
    assert scaled(losses, settings) == (3 if declared is False else 6)
    assert losses.is_part_of_sum(MODEL, 8, settings) is (declared is not False)


@pytest.mark.parametrize("average", [True, False])
def test_the_trainer_multiplies_a_part_of_a_sum_by_the_number_of_processes(make_trainer, average):
    trainer = make_trainer(average_tokens_across_devices=average)
    trainer._mt_processes, trainer.model_accepts_loss_kwargs = Processes(0, 2), True
    trainer.compute_loss_func = lambda outputs, labels, num_items_in_batch: LOSS
    three = {"x": torch.ones(3, 4), "labels": torch.tensor([1, 0, 1])}
    assert trainer.compute_loss(trainer.model, three, num_items_in_batch=8) == (1.0 if average else 0.5)


@pytest.mark.parametrize("declared", [None, True])
@pytest.mark.parametrize("uses", [True, False])
def test_a_subclass_multiplies_its_loss_by_the_number_of_processes_itself(uses, declared):
    settings = LossSettings(overrides=OWN_LOSS, declared=declared)
    assert own(LossNormalisation(), settings, items=torch.tensor(8), weight=BatchWeight(), uses=uses) == 6


def test_only_the_first_batch_of_a_silent_subclass_is_watched():
    settings, items = LossSettings(overrides=OWN_LOSS), torch.tensor(8)

    def given(losses, num_items=items, settings=settings, model=MODEL):
        return losses.begin_batch(model, num_items, settings).num_items

    losses = LossNormalisation()
    assert given(losses, None) is None
    for _ in range(2):  # memory may have run out the first time
        assert type(given(losses)) is not torch.Tensor
    losses.weighted(OUTPUTS["loss"], HALF, items, settings, "Own")
    assert given(losses) is items
    assert type(given(LossNormalisation(), 8)) is not int
    assert given(LossNormalisation(), model=Compiled(MODEL)) is items  # traced code would not tell
    assert given(LossNormalisation(), model=Replica(Compiled(MODEL))) is items
    assert given(LossNormalisation(subclass_divides=True)) is items
    assert given(LossNormalisation(), settings=LossSettings()) is items
    for other in ({"declared": True}, {"accepts_items": False}):
        assert given(LossNormalisation(), settings=settings._replace(**other)) is items


# Within a Trainer


def test_what_a_library_sets_on_the_trainer_after_it_was_made_counts(make_trainer):
    trainer, inputs = make_trainer(), {"x": torch.ones(2, 4), "labels": torch.tensor([1, 0])}
    trainer.model.eval()
    trainer.label_smoother = lambda outputs, labels, shift_labels: labels.sum() + 6
    assert trainer.compute_loss(trainer.model, dict(inputs)) == 7
    trainer.compute_loss_func = lambda outputs, labels, num_items_in_batch: LOSS * num_items_in_batch
    assert trainer.compute_loss(trainer.model, dict(inputs), num_items_in_batch=4) == 2
    loss, _, labels = trainer.prediction_step(trainer.model, dict(inputs), False)
    assert (loss, labels.tolist()) == (1, [1, 0])
    trainer.compute_loss_func = trainer.label_smoother = None
    loss, outputs = trainer.compute_loss(trainer.model, dict(inputs), return_outputs=True)
    assert loss is outputs["loss"]


@pytest.mark.parametrize("declared", [None, True, False])
def test_a_step_that_a_user_calls_is_a_whole_update(make_trainer, declared):
    trainer = make_trainer()
    trainer.loss_is_scaled_for_ga = declared
    trainer.model.eval()
    inputs = {"x": torch.ones(2, 4), "labels": torch.tensor([1, 0])}
    for module in trainer.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    expected = trainer.model(**inputs)["loss"]
    for items in (None, torch.tensor(2)):
        assert trainer.training_step(trainer.model, dict(inputs), items) == expected


def test_items_of_an_update_leave_out_those_of_another_process(make_trainer, monkeypatch):
    trainer, run = make_trainer(), SimpleNamespace(loss=padded(Others(theirs=[5.0, 0, 1]), 2))
    trainer.model_accepts_loss_kwargs, trainer._mt_run = True, run
    with run.loss.loading_update(4):
        loaded = iter([batch(1, 1, 1), batch(1, 1), batch(1)])
        batches, items = trainer.get_batch_samples(loaded, 2, torch.device("cpu"))
    assert len(batches) == 2
    assert items.item() == 8


def test_an_override_counts_the_items_of_all_processes_in_an_update_alone(make_trainer):
    class Doubling(Trainer):
        def _get_num_items_in_batch(self, batch_samples, device):
            return super()._get_num_items_in_batch(batch_samples, device) * 2

    trainer, given = make_trainer({"kind": Doubling}), []
    update = padded(Others(theirs=[5.0, 0, 1]), 2)
    trainer._mt_processes, trainer._mt_run = Processes(0, 2), SimpleNamespace(loss=update)
    trainer.compute_loss_func = lambda outputs, labels, num_items_in_batch: given.append(num_items_in_batch) or LOSS
    with update.loading_update(0):
        assert trainer.get_batch_samples(iter([batch(1, 1, 1)]), 1, torch.device("cpu"))[1] == 16
    three = {"x": torch.ones(3, 4), "labels": torch.tensor([1, 0, 1])}
    assert trainer.prediction_step(trainer.model.eval(), three, True)[0] == LOSS
    assert given == [6]


def test_items_are_counted_together_while_the_batches_of_an_update_are_loaded(make_trainer):
    together = []

    class Notes(Trainer):
        def _get_num_items_in_batch(self, batch_samples, device):
            together.append(self._mt_run.loss.is_loading)

    make_trainer({"kind": Notes}, max_steps=2, eval_strategy="epoch").train()
    assert together == [True] * 2 + [False] * 3
