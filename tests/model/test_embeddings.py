"""Gradients of large embeddings, added up in place: those that torch makes, for the time of a run."""

import copy
import pickle

import pytest
import torch
from torch import nn
from transformers import TrainerCallback

from mps_trainer import Trainer
from mps_trainer.model.patches import embeddings
from mps_trainer.model.patches.embeddings import InPlaceEmbedding, embedding_gradients_in_place
from mps_trainer.utils.overrides import Overrides
from tests.conftest import assert_same_weights

WORDS = 12


class Words(nn.Module):
    """Embeds words, of which 0 is padding, and tells two kinds of sentences apart."""

    def __init__(self, tied=False):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, 4, padding_idx=0)
        self.head = nn.Linear(4, WORDS if tied else 2)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, input_ids, labels):
        logits = self.head(self.words(input_ids).mean(1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


@pytest.fixture
def sentences():
    torch.manual_seed(1)
    return [{"input_ids": torch.randint(0, WORDS, (5,)), "labels": i % 2} for i in range(24)]


@pytest.fixture
def train(make_trainer, sentences, monkeypatch):
    """The Trainer after a run, with embeddings in place or as torch has them; `kinds` are those that were met."""

    def run(in_place, model=None, kind=Trainer, callbacks=None, **settings):
        monkeypatch.setattr(embeddings, "LARGE", 0 if in_place else 1 << 60)
        model = model or Words()
        parts = {"kind": kind, "model": model, "train_dataset": sentences, "callbacks": callbacks}
        trainer = make_trainer(trainer=parts, per_device_train_batch_size=4, **settings)
        trainer.kinds = set()
        model.words.register_forward_hook(lambda module, *_: trainer.kinds.add(type(module)))
        trainer.train()
        return trainer

    return run


@pytest.mark.parametrize("tied", [False, True])
def test_a_run_is_equal_in_every_bit(train, tied):
    one, other = (train(in_place, Words(tied), num_train_epochs=2) for in_place in (True, False))
    assert (one.kinds, other.kinds) == ({InPlaceEmbedding}, {nn.Embedding})
    assert_same_weights(one.model.state_dict(), other.model.state_dict())


def test_accumulated_batches_add_up(train):
    one, other = (train(in_place, gradient_accumulation_steps=3, num_train_epochs=2) for in_place in (True, False))
    assert one.kinds == {InPlaceEmbedding}
    for name, tensor in other.model.state_dict().items():
        torch.testing.assert_close(one.model.state_dict()[name], tensor, atol=1e-6, rtol=0)  # a sum in another order


def test_padding_learns_nothing(train):
    model = Words()
    before = model.words.weight[0].detach().clone()
    assert torch.equal(train(True, model, weight_decay=0.0).model.words.weight[0], before)


def test_a_gradient_that_somebody_keeps_stays_as_it_was(train):
    class Keep(TrainerCallback):
        def __init__(self):
            self.kept, self.copies = [], []

        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            self.kept.append(model.words.weight.grad)
            self.copies.append(model.words.weight.grad.clone())

    keep = Keep()
    assert train(True, callbacks=[keep]).kinds == {InPlaceEmbedding}
    assert len(keep.kept) > 2
    assert all(torch.equal(one, other) for one, other in zip(keep.kept, keep.copies, strict=True))


def test_a_hook_on_the_weight_is_called(train):
    model, seen = Words(), []
    model.words.weight.register_hook(lambda gradient: seen.append(gradient.shape))
    train(True, model, max_steps=2)
    assert seen == [(WORDS, 4)] * 2


def test_a_step_of_a_subclass_may_ask_autograd(train):
    class Asking(Trainer):
        def compute_loss(self, model, inputs, **kwargs):
            loss = model(**inputs)["loss"]
            torch.autograd.grad(loss, model.words.weight, retain_graph=True)
            return loss

    class Stepping(Trainer):
        def training_step(self, *args):
            return super().training_step(*args)

    for kind in (Asking, Stepping):
        assert train(True, kind=kind, max_steps=1).kinds == {nn.Embedding}


def test_a_frozen_embedding_gets_no_gradient(train):
    model = Words()
    model.words.requires_grad_(False)
    assert train(True, model, max_steps=1).model.words.weight.grad is None


def test_small_ones_and_those_with_settings_of_their_own_stay(make_args, monkeypatch):
    model = nn.ModuleList([nn.Embedding(9, 2), nn.Embedding(2, 2), nn.Embedding(9, 2, max_norm=1.0)])
    monkeypatch.setattr(embeddings, "LARGE", 9 * 2 * 4)
    with embedding_gradients_in_place(
        model, make_args(), torch.device("cpu"), is_distributed=False, overrides=Overrides()
    ):
        assert [type(module) for module in model] == [InPlaceEmbedding, nn.Embedding, nn.Embedding]
        for twin in (copy.deepcopy(model[0]), pickle.loads(pickle.dumps(model[0]))):
            assert type(twin) is nn.Embedding
            assert torch.equal(twin.weight, model[0].weight)
            assert vars(twin).keys() == vars(nn.Embedding(9, 2)).keys()
    assert [type(module) for module in model] == [nn.Embedding] * 3
    assert vars(model[0]).keys() == vars(nn.Embedding(9, 2)).keys()
