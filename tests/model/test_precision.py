"""Number formats, and memory for time."""

import contextlib
import copy
import functools
import re
import warnings

import pytest
import torch

from mps_trainer import Trainer
from mps_trainer.model.activation_checkpointing import enable_activation_checkpointing
from tests.conftest import Classifier, callback, refusal
from tests.tiny import tiny

pytestmark = pytest.mark.every_device


@contextlib.contextmanager
def dtypes_of_hidden(model):
    """Returns a set that gets the number formats of the outputs of the hidden layer."""
    seen = set()
    with model.hidden.register_forward_hook(lambda module, args, output: seen.add(output.dtype)):
        yield seen


def dtypes_in_run(trainer):
    with dtypes_of_hidden(trainer.model) as seen:
        trainer.train()
        trainer.evaluate()
    return seen


class Products(Trainer):
    """Keeps the formats of the outputs that its loss gets, and of a product in the loss."""

    formats = frozenset()

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True)
        logits = outputs["logits"]
        self.formats |= {logits.dtype, (logits.detach() @ logits.detach().T).dtype}
        return (loss, outputs) if return_outputs else loss


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [({}, torch.float32), ({"bf16": True}, torch.bfloat16), ({"fp16": True}, torch.float16)],
)
def test_flag_autocasts_the_model_and_not_the_loss_in_training_and_evaluation(make_trainer, flags, dtype):
    trainer = make_trainer({"kind": Products}, max_steps=3, **flags)
    assert dtypes_in_run(trainer) == {dtype}
    assert trainer.formats == {torch.float32}
    assert {parameter.dtype for parameter in trainer.model.parameters()} == {torch.float32}
    trainer.predict(trainer.train_dataset)
    trainer.evaluation_loop(trainer.get_eval_dataloader(), "Evaluation")
    assert "forward" not in vars(trainer.model)


@pytest.fixture
def checkpointing(make_trainer):
    def make(given):
        trainer = {
            "model": tiny("BertForSequenceClassification", num_hidden_layers=2),
            "train_dataset": [{"input_ids": [1], "labels": 0}],
        }
        return make_trainer(trainer, max_steps=1, gradient_checkpointing=True, gradient_checkpointing_kwargs=given)

    return make


def test_reentrant_checkpointing_on_mps_warns_of_wrong_gradients(checkpointing, device):
    trainer = checkpointing({"use_reentrant": True})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.train()
    assert any("127676" in str(warning.message) for warning in caught) == (device == "mps")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"a": 1}, "has 'a', which torch.utils.checkpoint does not take. It takes use_reentrant, "),
        ({"use_reentrant": False, "function": 1}, "has 'function', which"),
        ({"use_reentrant": "no"}, "has use_reentrant='no', which must be true or false"),
        ({"use_reentrant": False, "determinism_check": "all"}, "refuses: determinism_check should be"),
        ({"debug": True}, "only supported when use_reentrant=False"),
        ({"every_n_layers": 0}, "has every_n_layers=0, which"),
        ({"offload": 1}, "has offload=1, which"),
    ],
)
def test_what_torch_does_not_take_of_checkpointing_is_refused_before_a_step(checkpointing, given, says):
    trainer = checkpointing(given)
    assert says in refusal(trainer.train)
    assert trainer.state.global_step == 0
    trainer.model = Classifier()
    assert "Classifier has no gradient_checkpointing_enable" in refusal(trainer.train)


def test_some_layers_are_recomputed_and_a_mac_has_no_place_to_move_activations_to(checkpointing, caplog):
    trainer, found = checkpointing({"every_n_layers": 2, "offload": True}), []
    layers = trainer.model.bert.encoder.layer
    trainer.add_callback(
        callback(on_step_end=lambda **_: found.extend(layer.gradient_checkpointing for layer in layers))
    )
    trainer.train()
    assert found == [True, False]
    assert "offload in activation_checkpointing_kwargs has no effect" in caplog.text

    class Wrapper(Classifier):  # sentence-transformers has one
        def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None, **others):
            self.given = others

    enable_activation_checkpointing(wrapper := Wrapper(), trainer.args)
    assert wrapper.given == {"every_n_layers": 2}


@pytest.mark.parametrize(("optim", "moves"), [("sgd", False), ("adamw_torch", False), ("adamw_torch_fused", True)])
def test_schedule_waits_for_steps_that_an_overflow_left_out(make_trainer, optim, moves):
    """A fused optimizer leaves the weights alone by itself, and nobody waits to hear of it."""
    trainer = make_trainer(max_steps=3, fp16=True, optim=optim, logging_nan_inf_filter=False)
    trainer.model.head.weight.register_hook(lambda gradient: gradient * float("inf"))
    before = trainer.model.head.weight.detach().clone()
    trainer.train()
    assert torch.equal(trainer.model.head.weight, before)
    assert trainer.lr_scheduler.last_epoch == (3 if moves else 0)


def test_a_resumed_run_goes_on_with_the_scale_of_fp16(make_trainer):
    settings = {"fp16": True, "save_strategy": "steps", "save_steps": 1}
    trainer, resumed = make_trainer(max_steps=1, **settings), make_trainer(max_steps=2, **settings)
    trainer.model.head.weight.register_hook(lambda gradient: gradient * float("inf"))
    trainer.train()
    resumed.train(resume_from_checkpoint=True)
    assert resumed._mt_precision.scaler.get_scale() == 2.0**15  # half of what a scaler begins with


def test_no_clipping_leaves_the_gradients_as_they_are(make_trainer):
    trainer = make_trainer(max_grad_norm=0.0, max_steps=1)
    seen = []

    def watch(model, **_):
        model.head.bias.grad.fill_(float("inf"))
        seen.append(trainer._get_grad_norm(model))
        seen.append(model.head.weight.grad.abs().max())

    trainer.add_callback(callback(on_pre_optimizer_step=watch))
    trainer.train()
    assert seen[0] == float("inf")
    assert seen[1] > 0  # dividing by an infinite norm would have left 0


@pytest.mark.parametrize("version", ["2.6.0", "2.7.1", "2.8.0"])
def test_fp16_on_mps_needs_the_torch_that_brought_its_scaler(make_trainer, device, monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    if device == "mps" and version < "2.8":
        said = refusal(make_trainer, fp16=True)
        assert re.search(rf"torch {version} has no gradient scaler for mps.*torch>=2\.8", said)
    else:
        assert make_trainer(fp16=True).accelerator.scaler is not None
    assert make_trainer(bf16=True).accelerator.mixed_precision == "bf16"


def test_a_model_of_several_forwards_is_autocast_in_each(make_trainer):
    """A loss may call the model twice, as contrastive losses do, and a callback in between."""
    formats = set()

    def ask(args, model, **_):
        model.eval()
        formats.add(model(torch.ones(1, 4, device=args.device))["logits"].dtype)

    trainer = make_trainer({"callbacks": [callback(on_step_end=ask)]}, max_steps=2, bf16=True)
    assert dtypes_in_run(trainer) == {torch.bfloat16}
    assert formats == {torch.float32}


def test_a_copy_made_during_a_run_has_its_own_weights_and_computes_in_float32_afterwards(make_trainer):
    """As a model of reference, or an average of the weights, would be."""

    twins = []

    def copy_model(args, model, **_):
        twins.append(copy.deepcopy(model))
        with torch.no_grad():
            for parameter in twins[0].parameters():
                parameter.zero_()
            assert twins[0](torch.ones(1, 4, device=args.device))["logits"].abs().max() == 0

    make_trainer({"callbacks": [callback(on_step_end=copy_model)]}, max_steps=1, bf16=True).train()
    assert dtypes_in_run(make_trainer({"model": twins[0]}, max_steps=1)) == {torch.float32}


def test_a_model_that_a_library_prepares_is_autocast_too(make_trainer):
    trainer = make_trainer(max_steps=1, bf16=True)
    reference = trainer.accelerator.prepare_model(copy.deepcopy(trainer.model), evaluation_mode=True)
    for _ in range(2):
        with dtypes_of_hidden(reference) as seen:
            logits = reference(torch.ones(1, 4, device=trainer.args.device))["logits"]
        assert (seen, logits.dtype) == ({torch.bfloat16}, torch.float32)
        trainer.accelerator.prepare(reference)  # a second time


@pytest.mark.parametrize("wraps", [functools.wraps, lambda inner: lambda outer: outer], ids=["wraps", "plain"])
def test_a_wrapper_that_a_callback_puts_around_forward_stays_without_autocast(make_trainer, wraps):
    wrappers = []

    def wrap(model, **_):
        inner = model.forward
        wrappers.append(wraps(inner)(lambda x, labels=None: inner(x, labels)))
        model.forward = wrappers[0]

    def evaluate(model, **_):
        make_trainer({"model": model}, bf16=True).evaluate()  # a Trainer inside this one

    both = callback(on_train_begin=wrap, on_train_end=evaluate)
    trainer = make_trainer({"callbacks": [both]}, max_steps=1, bf16=True)
    assert dtypes_in_run(trainer) == {torch.bfloat16}
    assert trainer.model.forward is wrappers[0]
    with dtypes_of_hidden(trainer.model) as seen:
        trainer.model(torch.ones(1, 4, device=trainer.args.device))
    assert seen == {torch.float32}


def test_a_forward_that_is_no_method_is_cast_by_two_trainers_and_put_back(make_trainer):
    model = make_trainer().model
    inner = model.forward
    model.forward = own = lambda x, labels=None: inner(x, labels)
    make_trainer({"model": model}, bf16=True).accelerator.prepare_model(model)
    prepared = model.forward
    assert dtypes_in_run(make_trainer({"model": model}, max_steps=1, bf16=True)) == {torch.bfloat16}
    assert model.forward is prepared is not own


def test_a_compiled_model_is_not_compiled_anew_for_a_second_run(make_trainer):
    torch._dynamo.reset()
    compiled = torch._dynamo.utils.counters["stats"]
    trainer = make_trainer(max_steps=2, bf16=True, torch_compile=True, torch_compile_backend="eager")
    graphs = []
    for _ in range(2):
        trainer.train()
        trainer.evaluate()
        graphs.append(compiled["unique_graphs"])
    assert graphs[0] == graphs[1] > 0
