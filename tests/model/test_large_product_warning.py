"""On an affected Mac, a run says by name which layers get wrong gradients; elsewhere it says and does nothing."""

import pytest
import torch
from torch import nn

from mps_trainer.model import large_product_warning, preparation
from mps_trainer.model.large_product_warning import told_of_large_products
from tests.conftest import messages_with
from tests.tiny import tiny

MPS = torch.device("mps")


@pytest.fixture(autouse=True)
def anew(monkeypatch):
    monkeypatch.setattr(large_product_warning.torch, "__version__", "2.13.0")
    large_product_warning._warn_once.cache_clear()
    yield
    large_product_warning._warn_once.cache_clear()


class LanguageModel(nn.Module):
    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, 16)
        self.projection = nn.Linear(16, 16)
        self.lm_head = nn.Linear(16, words, bias=False)
        self.score = nn.Linear(16, 2)
        self.narrow = nn.Linear(8, 50_257)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.projection(self.embedding(input_ids))


def hooks(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if module._forward_pre_hooks]


def test_a_head_is_named_once(caplog):
    model = LanguageModel(40_000).requires_grad_(False)
    for _ in range(2):
        with told_of_large_products(model, MPS, "Apple M1"):
            model(input_ids=torch.zeros(2, 8, dtype=torch.long))
    (warning,) = messages_with(caplog, "may be wrong")
    assert warning.startswith("Gradients that come through lm_head (40,000 outputs) may be wrong: torch 2.13.0 compu")
    assert "Install torch 2.14 or later" in warning


@pytest.mark.parametrize(("learns", "layers"), [(True, "projection and 1 more layer"), (False, "projection")])
def test_the_first_batch_with_too_many_tokens_is_told_and_the_hook_is_removed(caplog, learns, layers):
    model = LanguageModel(32)
    model.lm_head.requires_grad_(learns)
    with told_of_large_products(model, MPS, "Apple M1"):
        model(torch.zeros(2, 16_383, dtype=torch.long))
        assert messages_with(caplog, "may be wrong") == []
        model(torch.zeros(8, 4096, dtype=torch.long))
        assert not hooks(model)
        model(torch.zeros(8, 4096, dtype=torch.long))
    (warning,) = messages_with(caplog, "may be wrong")
    assert warning.startswith(f"Gradients of {layers}, from a batch of 32,768 tokens, may be wrong: ")


@pytest.mark.parametrize(
    ("device", "chip", "version"),
    [
        ("cpu", "Apple M1", "2.13.0"),
        ("mps", "Apple M3", "2.13.0"),
        ("mps", "Apple M1", "2.14.0"),
        ("mps", None, "2.13.0"),
    ],
)
def test_other_machines_are_left_alone(device, chip, version, caplog, monkeypatch):
    monkeypatch.setattr(large_product_warning.torch, "__version__", version)
    model = LanguageModel(40_000)
    with told_of_large_products(model, torch.device(device), chip):
        assert not hooks(model)
    assert messages_with(caplog, "may be wrong") == []


def test_patches_of_images_are_counted_as_tokens(caplog):
    model = tiny("ViTForImageClassification", image_size=8, patch_size=1, num_channels=1)
    with told_of_large_products(model, MPS, "Apple M1"):
        model(torch.zeros(500, 1, 8, 8))
    assert messages_with(caplog, "may be wrong") == hooks(model) == []
    with told_of_large_products(model, MPS, "Apple M1"):
        model(torch.zeros(505, 1, 8, 8))
    (warning,) = messages_with(caplog, "may be wrong")
    assert "and 11 more layers, from a batch of 32,825 tokens" in warning


def test_the_layers_of_gpt2_are_watched_in_training(caplog):
    block = tiny("GPT2LMHeadModel").transformer.h[0].mlp
    with told_of_large_products(block, MPS, "Apple M1"):
        with torch.no_grad():
            block(torch.zeros(8, 4096, 16))  # an evaluation
        assert messages_with(caplog, "may be wrong") == []
        block(torch.zeros(8, 4096, 16))
    (warning,) = messages_with(caplog, "may be wrong")
    assert "Gradients of c_fc and 1 more layer, from a batch of 32,768 tokens" in warning


def test_a_run_on_mps_warns(mps, make_trainer, monkeypatch, caplog):
    monkeypatch.setattr(preparation, "apple_chip", lambda: "Apple M2")
    trainer = make_trainer(max_steps=1)
    trainer.model.wide = nn.Linear(16, 40_000)
    trainer.train()
    assert messages_with(caplog, "Gradients that come through wide (40,000 outputs) may be wrong")
