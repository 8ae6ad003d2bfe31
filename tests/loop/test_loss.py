"""The loss of a model's outputs, and its part in the loss of an update, in one process and in several."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mps_trainer import Trainer
from mps_trainer.compat import Compat
from mps_trainer.distributed import Processes
from mps_trainer.loop import loss as losses
from mps_trainer.loop.loss import (
    UpdateLoss,
    count_items,
    divisors_of,
    items_of,
    loss_in_outputs,
    predicts_next_token,
    shifts_labels,
)
from mps_trainer.loop.run import TrainingRun
from tests.conftest import refusal
from tests.tiny import tiny

LOSS = torch.tensor(0.5)
ONE, TWO = Processes(0, 1), Processes(0, 2)


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


def test_batches_weigh_by_their_items():
    assert divisors_of([8, 8]) == [2.0, 2.0]
    assert divisors_of([8, 2]) == [1.25, 5.0]
    assert divisors_of([4, 0]) == [1.0, None]
    assert divisors_of([None, None]) == [2.0, 2.0]
    assert divisors_of([0, 0]) == [2.0, 2.0]
    batches = [{"target": LABELLED}, {"target": torch.tensor([1])}]
    assert loss_with(label_names=["target"]).divisors(batches) == [4 / 3, 4.0]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("LlamaForCausalLM", [1.5, 3.0]),
        ("GPT2LMHeadModel", [1.5, 3.0]),  # no loss is known by its name
        ("XLMWithLMHeadModel", [5 / 3, 2.5]),  # its loss does not shift the labels
        ("T5ForConditionalGeneration", [5 / 3, 2.5]),
        ("BertForSequenceClassification", [5 / 3, 2.5]),
        ("Wav2Vec2ForCTC", [1.5, 3.0]),  # the mean over examples
    ],
)
def test_batches_weigh_by_the_labels_or_examples_that_the_loss_of_the_model_averages(kind, expected):
    batches, model = [{"labels": LABELLED}, {"labels": torch.tensor([[1, 2]])}], tiny(kind)
    assert loss_with(model=model).divisors(batches) == expected
    is_causal = kind.endswith(("CausalLM", "LMHeadModel"))
    assert predicts_next_token(model) is predicts_next_token(SimpleNamespace(_orig_mod=model)) is is_causal


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


def loss_with(*overrides, processes=ONE, **attributes):
    """Returns the loss of a Trainer of a class that overrides methods, with what `UpdateLoss` reads of it."""
    defaults = {
        "args": SimpleNamespace(average_tokens_across_devices=True),
        "model": nn.Linear(1, 1),
        "model_wrapped": None,
        "label_names": ["labels"],
        "compute_loss_func": None,
        "label_smoother": None,
        "loss_is_scaled_for_ga": None,
        "model_accepts_loss_kwargs": True,
        "current_gradient_accumulation_steps": 1,
    }
    trainer = object.__new__(type("Own", (Trainer,), dict.fromkeys(overrides)))
    own = {"_mt_compat": Compat.of(trainer), "_mt_processes": processes}
    return UpdateLoss(SimpleNamespace(**{**defaults, **own, **attributes}))


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
    loss = loss_with(model=model)
    assert loss.model_uses_items is None
    expected = torch.tensor([1.0 if divides else 8.0])
    for _ in range(3):
        assert torch.equal(loss.forward(model, {"x": torch.tensor([8.0])}, items), expected)
        assert loss.model_uses_items is divides
    assert [each is None for each in model.given] == [False, not divides, not divides]
    if divides:
        assert model.given[1:] == [items, items]


def test_a_model_that_only_looks_at_the_items_does_not_use_them():
    class Looks(nn.Module):
        def forward(self, x, num_items_in_batch):
            assert (num_items_in_batch.device, num_items_in_batch.shape) == (x.device, ())
            assert not num_items_in_batch.is_floating_point()

    loss = loss_with()
    loss.forward(Looks(), {"x": torch.ones(4)}, torch.tensor(8))
    assert loss.model_uses_items is False


def test_a_sharded_model_gets_the_items_on_the_device_of_its_inputs(monkeypatch):
    model = Takes(False)
    monkeypatch.setattr("mps_trainer.loop.loss.is_sharded", lambda each: each is model)
    loss_with().forward(model, {"x": torch.ones(4, device="meta")}, torch.tensor(8))
    assert model.given[0].is_meta


def test_a_batch_without_names_is_refused_in_one_line():
    assert refusal(loss_with().forward, Takes(False), [LOSS, LOSS], None, kind=TypeError) == (
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
    loss, values = loss_with(model=model), []
    tokens = {"input_ids": torch.tensor([[1, 2, 3]]), "labels": torch.tensor([[1, 2, 3]])}
    for items in (torch.tensor(4), torch.tensor(4), 4):
        values.append(loss.forward(model, tokens, items)["loss"])
    on_device = {name: tensor.to("meta") for name, tensor in tokens.items()}
    loss.forward(model.to("meta"), on_device, torch.empty((), device="meta"))
    assert loss.model_uses_items
    assert [type(each) for each in given[1:3]] == [int, int]
    assert given[3].is_meta
    torch.testing.assert_close(values[0], values[1])


def test_the_first_batch_of_compiled_code_is_run_uncompiled():
    model = Compiled(Takes(True))
    loss = loss_with(model=model)
    loss.forward(model, {"x": torch.tensor([8.0])}, torch.tensor(8))
    assert (loss.model_uses_items, model.calls) == (True, 0)
    loss.forward(model, {"x": torch.tensor([8.0])}, torch.tensor([8.0]))
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
    loss = loss_with(model=model)
    for _ in range(2):
        loss.forward(model, {"x": torch.tensor([8.0])}, torch.tensor(8))
    assert all(map(torch.is_tensor, given))


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


def among(others, average=True, overrides=(), **settings):
    args = SimpleNamespace(average_tokens_across_devices=average)
    loss = loss_with(*overrides, processes=others, args=args, **settings)
    loss.counts_together = True
    return loss


def batch(*labels: int) -> dict[str, torch.Tensor]:
    return {"labels": torch.tensor(labels)}


def test_processes_weigh_by_the_items_of_all_or_each_by_its_own_if_it_is_asked_to():
    others = Others(theirs=[0, 6, 2])  # unknown, items, batches
    found = among(others).divisors([batch(1, 1, 1), batch(1, -100)])
    assert (others.asked, others.awaited) == (1, 0)  # the answer travels while the forward pass runs
    assert [float(each) for each in found] == [10 / (3 * 2), 10 / (1 * 2)]
    others = Others()
    loss = among(others, average=False)
    assert loss.divisors([batch(1, 1, 1), batch(1, -100)]) == [pytest.approx(4 / 3), 4.0]
    assert loss.items([batch(1, 1, 1)]) == 3
    assert others.asked == 0


@pytest.fixture
def padded(monkeypatch):
    """Begins an update in which the last batch of `count` is another process's, and so is the first of the next."""
    monkeypatch.setattr(losses, "distributed_sampler", lambda loader: loader.share)

    def start(loss, count):
        share = SimpleNamespace(padding_batches=[4 + count - 1, 4 + count])
        loss.start_run(SimpleNamespace(share=share))
        loss._start = 4

    return start


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
    padded, theirs, mine, is_padded, expected
):
    loss = among(Others(theirs))
    if is_padded:
        padded(loss, len(mine))
    assert [each and float(each) for each in loss.divisors(mine)] == expected


@pytest.mark.parametrize(
    ("theirs", "mine", "expected"),
    [
        ([5.0, 0, 1], batch(1, 1, 1), torch.tensor(8)),
        ([5.0, 1, 1], batch(1, 1, 1), None),  # another process does not know its own
        ([5.0, 0, 1], {"x": torch.ones(3)}, None),
    ],
)
def test_items_are_summed_over_all_processes_if_they_are_known_and_asked_for(theirs, mine, expected):
    assert among(Others(theirs)).items([mine]) == expected
    others = Others(theirs)
    assert among(others, model_accepts_loss_kwargs=False).items([mine]) is None
    assert others.asked == 0


@pytest.mark.parametrize("theirs", [0, 1])
def test_items_are_asked_for_until_no_process_uses_them(theirs):
    others = Others(theirs=[0.0, 1, theirs])
    loss = among(others)
    loss.items([batch(1)])
    assert others.asked == 1  # this process may use them until its first loss
    loss.model_uses_items = False
    loss.items([batch(1)])
    loss.items([batch(1)])
    assert others.asked == 2 + theirs


def test_items_are_asked_for_again_from_the_step_on_in_which_a_callback_sets_a_loss():
    loss = among(Others(theirs=[5.0, 0, 0]))
    loss._all_ignore_items = True
    assert loss.items([batch(1, 1, 1)]) == 3
    loss.trainer.compute_loss_func = lambda outputs, labels, num_items_in_batch: None
    assert loss.items([batch(1, 1, 1)]) == 8


def test_a_run_asks_again_if_its_loss_uses_the_items(make_trainer):
    trainer = make_trainer(max_steps=1)
    trainer._mt_loss._all_ignore_items = True  # an earlier run had another loss
    trainer.train()
    assert not trainer._mt_loss._all_ignore_items


def test_items_are_always_asked_for_if_a_subclass_computes_the_loss():
    others = Others(theirs=[5.0, 0, 0])
    loss = among(others, overrides=["compute_loss"])
    loss.model_uses_items = False
    for asked in (1, 2):
        assert loss.items([batch(1, 1, 1)]) == 8
        assert others.asked == asked


def test_a_process_that_has_nothing_to_learn_adds_nothing(make_trainer):
    trainer = make_trainer()
    batch = {"x": torch.full((2, 4), float("inf")), "labels": torch.tensor([0, 1])}
    TrainingRun(trainer).zero_gradient_backward(batch, None)
    gradients = [parameter.grad for parameter in trainer.model.parameters()]
    assert all(gradient is not None and not gradient.any() for gradient in gradients)


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


def scaled(loss, labels=None, given=8, items=8):
    """Returns a loss of 6 in an update with a divisor of 2, where compute_loss is given `given` of `items`."""
    loss.divisor = 2
    loss.begin_batch(8)
    return loss.scaled(loss.loss_of(loss.trainer.model, OUTPUTS, {}, labels, given), items)


@pytest.mark.parametrize("accepted", [True, False])
@pytest.mark.parametrize("used", [None, True, False])
def test_a_models_loss_is_normalised_if_the_model_used_the_items(accepted, used):
    loss = loss_with(model_accepts_loss_kwargs=accepted)
    loss.model_uses_items = used
    assert scaled(loss) == (6 if used else 3)
    assert loss.may_use_items is (accepted and used is not False)
    assert scaled(loss, items=None) == 3


def test_a_function_of_the_users_is_normalised_if_it_is_given_the_items():
    given = []

    def function(outputs, labels, num_items_in_batch):
        given.append(num_items_in_batch)
        return outputs["loss"]

    loss = loss_with(compute_loss_func=function, model_accepts_loss_kwargs=False, label_smoother="unused")
    assert loss.may_use_items
    assert (scaled(loss, LABELS), scaled(loss, LABELS, None, None)) == (6, 3)
    assert given == [8, None]


@pytest.mark.parametrize(("accepted", "normalises"), [(True, True), (False, True), (True, False)])
def test_a_smoother_gets_the_items_where_it_and_the_model_accept_them(monkeypatch, accepted, normalises):
    # False in the first releases of transformers 5
    monkeypatch.setattr(losses, "_SMOOTHER_NORMALISES", normalises)
    given, both = [], accepted and normalises

    def smoother(outputs, labels, shift_labels, num_items_in_batch=None):
        given.append(num_items_in_batch)
        return outputs["loss"]

    loss = loss_with(label_smoother=smoother, model_accepts_loss_kwargs=accepted)
    loss.model_uses_items = False
    assert loss.may_use_items is accepted
    assert scaled(loss, LABELS) == (6 if both else 3)
    assert given == [8 if both else None]
    assert scaled(loss) == scaled(loss, LABELS, None) == 3  # the model's own loss, and one without the items
    for items in (torch.tensor(2), torch.tensor(2.5)):  # plain numbers need not come to the device
        scaled(loss, LABELS, items)
        assert repr(given[-1]) == repr(items.item() if both else None)


@pytest.mark.filterwarnings("ignore:.*is assumed to divide")
@pytest.mark.parametrize("accepted", [True, False])
def test_a_subclass_is_taken_to_divide_where_its_model_accepts_the_items(accepted):
    loss = loss_with("compute_loss", model_accepts_loss_kwargs=accepted)
    loss.accumulated, loss.model_uses_items = 2, False
    assert loss.may_use_items is accepted  # else a loss that divides by them would be divided twice
    scaled(loss)  # this is the batch before
    loss.begin_batch(8)
    assert loss.scaled(OUTPUTS["loss"], 8) == (6 if accepted else 3)
    assert loss.scaled(OUTPUTS["loss"], None) == 3


@pytest.mark.parametrize("name", ["compute_loss", "training_step", "get_batch_samples"])
def test_a_subclass_that_replaces_a_method_around_the_loss_may_use_the_items(name):
    loss = loss_with(name)
    loss.model_uses_items = False
    assert loss.may_use_items


@pytest.mark.parametrize("declared", [True, False])
def test_what_a_class_declares_comes_first(declared):
    loss = loss_with(loss_is_scaled_for_ga=declared)
    loss.model_uses_items = not declared
    assert scaled(loss) == scaled(loss, items=None) == (6 if declared else 3)


@pytest.mark.parametrize(
    ("average", "trains", "given", "overrides", "expected"),
    [
        (True, True, 8, [], 12),
        (False, True, 8, [], 6),
        (True, False, 8, [], 6),  # an evaluation gives the items of this process, unless an override counts them
        (True, False, 8, ["_get_num_items_in_batch"], 12),
        (True, True, None, [], 6),
    ],
)
def test_a_normalised_loss_is_a_sum_over_the_processes_whose_gradients_are_averaged(
    average, trains, given, overrides, expected
):
    loss = among(TWO, average, overrides)
    loss.model_uses_items = True
    model = loss.trainer.model.train(trains)
    assert loss.scaled(loss.loss_of(model, OUTPUTS, {}, None, given), given) == expected


@pytest.mark.parametrize(("declared", "expected"), [(True, 12), (False, 3)])
def test_a_function_may_be_declared_to_return_the_mean_in_several_processes(declared, expected):
    settings = {"compute_loss_func": lambda outputs, *_, **__: outputs["loss"], "loss_is_scaled_for_ga": declared}
    assert scaled(loss_with(processes=TWO, **settings)) == expected


@pytest.mark.parametrize("settings", [{}, {"loss_is_scaled_for_ga": True}])
@pytest.mark.parametrize("uses", [True, False])
def test_a_subclass_multiplies_its_loss_by_the_number_of_processes_itself(uses, settings):
    loss = loss_with("compute_loss", processes=TWO, **settings)
    items = loss.begin_batch(torch.tensor(8))
    own = OUTPUTS["loss"] * (torch.div(items, other=8) if uses else 1)
    assert loss.scaled(own, 8) is own


def test_only_the_first_batch_of_a_silent_subclass_is_watched():
    loss, items = loss_with("compute_loss"), torch.tensor(8)
    assert loss.begin_batch(None) is None
    for _ in range(2):  # memory may have run out the first time
        assert type(loss.begin_batch(items)) is not torch.Tensor
    loss.scaled(OUTPUTS["loss"], items)
    assert loss.begin_batch(items) is items
    assert type(loss_with("compute_loss").begin_batch(8)) is not int
    compiled = loss_with("compute_loss", model_wrapped=Compiled(nn.Linear(1, 1)))
    assert compiled.begin_batch(items) is items  # traced code would not tell
    silent = loss_with("compute_loss")
    silent.stop_watching()
    assert silent.begin_batch(items) is items
    assert silent.model_uses_items
    assert loss_with().begin_batch(items) is items
    for settings in ({"loss_is_scaled_for_ga": True}, {"model_accepts_loss_kwargs": False}):
        assert loss_with("compute_loss", **settings).begin_batch(items) is items


def test_items_of_an_update_leave_out_those_of_another_process(make_trainer, monkeypatch, padded):
    trainer = make_trainer()
    monkeypatch.setattr(trainer, "_mt_processes", Others(theirs=[5.0, 0, 1]))
    trainer.model_accepts_loss_kwargs = trainer._mt_loss.counts_together = True
    padded(trainer._mt_loss, 2)
    batches, items = trainer.get_batch_samples(iter([batch(1, 1, 1), batch(1, 1), batch(1)]), 2, torch.device("cpu"))
    assert len(batches) == 2
    assert items.item() == 8
    padded(trainer._mt_loss, 1)
    _, items = trainer.get_batch_samples(iter([batch(1, 1)]), 1, torch.device("cpu"))
    assert items.item() == 5  # none of its own


def test_an_override_counts_the_items_of_all_processes_in_an_update_alone(make_trainer, monkeypatch):
    class Doubling(Trainer):
        def _get_num_items_in_batch(self, batch_samples, device):
            return super()._get_num_items_in_batch(batch_samples, device) * 2

    trainer, given = make_trainer({"kind": Doubling}), []
    monkeypatch.setattr(trainer, "_mt_processes", Others(theirs=[5.0, 0, 1]))
    trainer.compute_loss_func = lambda outputs, labels, num_items_in_batch: given.append(num_items_in_batch) or LOSS
    trainer._mt_loss.counts_together = True
    assert trainer.get_batch_samples(iter([batch(1, 1, 1)]), 1, torch.device("cpu"))[1] == 16
    trainer._mt_loss.counts_together = False
    three = {"x": torch.ones(3, 4), "labels": torch.tensor([1, 0, 1])}
    assert trainer.prediction_step(trainer.model.eval(), three, True)[0] == LOSS
    assert given == [6]


def test_items_are_counted_together_while_the_batches_of_an_update_are_loaded(make_trainer):
    together = []

    class Notes(Trainer):
        def _get_num_items_in_batch(self, batch_samples, device):
            together.append(self._mt_loss.counts_together)

    make_trainer({"kind": Notes}, max_steps=2, eval_strategy="epoch").train()
    assert together == [True] * 2 + [False] * 3
