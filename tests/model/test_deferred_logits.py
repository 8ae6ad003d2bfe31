"""Logits of language models in training: not there for the loss, and what they would have been for all else."""

import copy
import io

import pytest
import torch
from torch import nn
from transformers import LlamaForCausalLM

from mps_trainer import Trainer
from mps_trainer.model.patches import deferred_logits
from mps_trainer.model.patches.deferred_logits import DeferredLogits
from tests.conftest import callback, logged, refusal
from tests.tiny import SIZES, tiny, with_lora

pytestmark = pytest.mark.every_device
WORDS = SIZES["vocab_size"]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(deferred_logits, "CHUNK", 4 * WORDS * 8)


def llama(**settings):
    return tiny("LlamaForCausalLM", **settings)


def rows(count=48):
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, WORDS, (count, 12), generator=draw)
    return [{"input_ids": row, "labels": torch.where(row < 5, -100, row)} for row in tokens]


@pytest.fixture
def trained(make_trainer):
    """Trains with the chunked loss or without it, and returns losses and norms."""

    def train(model, on, trainer=None, **settings):
        given = {"model": model, "train_dataset": rows(), **(trainer or {})}
        made = make_trainer(given, max_steps=3, chunked_cross_entropy=on, learning_rate=1e-2, **settings)
        made.train()
        return logged(made, "loss") + logged(made, "grad_norm")

    return train


@pytest.fixture
def made(monkeypatch):
    """The deferred logits that were made, and whether they were computed."""
    found, new = [], DeferredLogits.__new__
    monkeypatch.setattr(DeferredLogits, "__new__", lambda *args: found.append(new(*args)) or found[-1])
    return found


OTHER_SETTINGS = [{"gradient_accumulation_steps": 2}, {"gradient_checkpointing": True}, {"bf16": True}]


@pytest.mark.parametrize(
    ("kind", "of_model", "settings"),
    [
        ("LlamaForCausalLM", {}, {}),
        ("LlamaForCausalLM", {"tie_word_embeddings": True}, {}),
        ("GPT2LMHeadModel", {}, {}),
        ("GemmaForCausalLM", {"head_dim": 8, "num_key_value_heads": 2}, {}),
        ("T5ForConditionalGeneration", {}, {}),
        ("BertForMaskedLM", {}, {}),
        *((kind, {}, each) for kind in ("LlamaForCausalLM", "T5ForConditionalGeneration") for each in OTHER_SETTINGS),
    ],
)
def test_losses_and_gradients_are_those_with_logits(trained, made, kind, of_model, settings):
    near = 1e-2 if "bf16" in settings else 1e-5  # 8 bits
    plain = trained(tiny(kind, **of_model), False, **settings)
    assert not made
    assert trained(tiny(kind, **of_model), True, **settings) == pytest.approx(plain, rel=near, abs=1e-5)
    assert made
    assert all(logits._numbers.computed is None for logits in made)


def test_with_an_adapter_the_head_has_no_gradient(trained, made):
    model = with_lora(llama())
    plain = trained(with_lora(llama()), False)
    assert trained(model, True) == pytest.approx(plain, rel=1e-5, abs=1e-5)
    assert made
    assert model.get_base_model().lm_head.weight.grad is None


def test_a_loss_of_ones_own_has_the_logits_it_would_have_had_and_the_run_says_why(trained, made, caplog):
    def smoothed(outputs, labels, num_items_in_batch=None):
        shifted = outputs.logits[:, :-1].flatten(0, 1)
        return nn.functional.cross_entropy(shifted, labels[:, 1:].flatten(), label_smoothing=0.1)

    class Own(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            return (smoothed(outputs, labels), outputs) if return_outputs else smoothed(outputs, labels)

    for own in ({"compute_loss_func": smoothed}, {"kind": Own}):
        plain = trained(llama(), False, own)
        with caplog.at_level("INFO", "transformers.trainer"):
            assert trained(llama(), True, own) == plain
        assert not made
    assert "  Off: the loss without logits, because compute_loss is overridden" in caplog.messages


def test_copies_made_in_a_run_have_heads_of_their_own(trained, made):
    copies, model = {}, llama()

    def copy_model(model, **_):
        """Copies the model as an average of weights does, and pickles it as a process of its own needs it."""
        torch.save(model, file := io.BytesIO())
        file.seek(0)
        copies.update(copied=copy.deepcopy(model), saved=torch.load(file, weights_only=False))

    trained(model, True, {"callbacks": [callback(on_step_end=copy_model)]})
    assert made
    assert "forward" not in vars(model.lm_head)
    assert {type(each.lm_head) for each in (model, *copies.values())} == {nn.Linear}
    for each in copies.values():
        model.zero_grad()
        each.zero_grad()
        tokens = torch.arange(5, 25).view(1, -1).to(each.device)
        each.train()(input_ids=tokens, labels=tokens).loss.backward()
        assert each.lm_head.weight.grad.norm() > 0
        assert model.lm_head.weight.grad is None


def test_a_wrapper_that_others_put_around_the_head_is_called_and_stays(trained, made):
    model, called = llama(), []
    plain = model.lm_head.forward
    model.lm_head.forward = wrapper = lambda hidden: called.append(1) or plain(hidden)
    trained(model, True)
    assert len(called) == 3
    assert not made
    assert model.lm_head.forward is wrapper


def test_a_model_that_its_user_compiled_trains(trained):
    plain = trained(llama(num_hidden_layers=1), False)
    model = llama(num_hidden_layers=1)
    model.compile(backend="eager")
    assert trained(model, True) == pytest.approx(plain, rel=1e-5, abs=1e-5)


def test_few_logits_and_those_of_evaluations_are_computed_at_once(make_trainer, trained, made, monkeypatch):
    trainer = make_trainer({"model": llama(), "train_dataset": rows(), "eval_dataset": rows(8)})
    assert trainer.predict(rows(8)).predictions.shape == (8, 12, WORDS)
    monkeypatch.setattr(deferred_logits, "CHUNK", 4 * WORDS * 8 * 12)
    trained(llama(), True)
    assert not made


def test_a_model_that_names_no_head_trains(trained):
    class Unnamed(LlamaForCausalLM):
        def get_output_embeddings(self):
            raise NotImplementedError

    assert trained(tiny(Unnamed), True) == trained(tiny(Unnamed), False)


def test_products_over_many_words_are_split_where_they_are_wrong(trained, made, monkeypatch, device):
    """On M1 and M2, with any torch: in a batch of any size."""
    monkeypatch.setattr(deferred_logits, "is_chip", lambda *_: True)
    plain = trained(llama(), False)
    monkeypatch.setattr(deferred_logits, "INNER", 10)
    monkeypatch.setattr(deferred_logits, "CHUNK", 2**30)
    sums, product = set(), deferred_logits.product
    monkeypatch.setattr(deferred_logits, "product", lambda *args: sums.add(args[2]) or product(*args))
    assert trained(llama(), True) == pytest.approx(plain, rel=1e-5, abs=1e-5)
    assert sums == ({9} if device == "mps" else set())
    assert not made


def deferred(hidden, weight):
    head = deferred_logits.Head(weight)
    meta = torch.empty(*hidden.shape[:-1], len(weight), device="meta")
    return head.logits(hidden, lambda: DeferredLogits(deferred_logits._Numbers(hidden, head, weight.dtype), meta))


@pytest.mark.parametrize("change", [lambda x: x.unsqueeze_(0), lambda x: torch._foreach_mul_([x], 2)])
def test_changes_that_autograd_does_not_follow_are_refused_and_reads_after_the_weights_changed(change):
    weight = torch.ones(5, 4)
    logits = deferred(torch.ones(6, 4, requires_grad=True), weight)
    assert "chunked_cross_entropy=False" in refusal(change, logits, kind=NotImplementedError)
    weight.add_(1)
    assert "its weight has changed" in refusal(logits.sum, kind=RuntimeError)


def test_its_description_is_that_of_the_logits(made):
    hidden, weight = torch.ones(2, 3, 4), torch.ones(5, 4)
    logits = deferred(hidden, weight)
    assert (logits.shape, logits.dtype, logits.dim(), len(logits)) == ((2, 3, 5), torch.float32, 3, 2)
    assert logits._numbers.computed is None
    assert isinstance(logits, torch.Tensor)
    assert torch.equal(logits + 0, torch.full((2, 3, 5), 4.0))
    assert repr(logits) == repr(torch.full((2, 3, 5), 4.0))
