"""M1 and M2 compute some large matrix products wrong. A model that has them is warned about."""

import pytest
import torch

from mps_trainer.devices.large_products import Layer, Product, product, warning_of_tokens, warning_of_width


@pytest.mark.parametrize(
    ("product", "torch", "wrong"),
    [
        (Product(16, 32_767, 16), "2.13.0", True),
        (Product(16, 32_766, 16), "2.13.0", False),
        (Product(15, 32_767, 16), "2.13.0", False),
        (Product(16, 32_767, 15), "2.13.0", False),
        (Product(2048, 50_257, 768), "2.14.0", False),
        (Product(16, 32_767, 16, batched=True), "2.15.1+cpu", True),
        (Product(50_257, 768, 50_257), "2.13.0", False),
    ],
)
def test_a_product_is_wrong_from_a_certain_size_on(product, torch, wrong):
    assert product.may_be_wrong(torch) is wrong


LAYERS = {
    "model.q_proj": Layer(64, 64),
    "model.frozen": Layer(64, 64, learns=False),
    "score": Layer(64, 2),
    "lm_head": Layer(64, 50_257, learns=False),
}


def test_a_language_models_head_is_named():
    warning = warning_of_width(LAYERS, "2.13.0")
    assert warning.startswith(
        "Gradients that come through lm_head (50,257 outputs) may be wrong: torch 2.13.0 computes "
    )
    assert "Install torch 2.14 or later" in warning
    assert warning_of_width({"q_proj": Layer(64, 64), "narrow": Layer(8, 50_257)}, "2.13.0") is None


def test_a_batch_with_too_many_tokens_names_the_layers_that_learn():
    assert warning_of_tokens(LAYERS, 32_766, "2.13.0") is None
    warning = warning_of_tokens(LAYERS, 32_768, "2.13.0")
    assert warning.startswith("Gradients of model.q_proj, from a batch of 32,768 tokens, may be wrong: ")
    more = {**LAYERS, "model.k_proj": Layer(64, 64), "model.v_proj": Layer(64, 64)}
    assert "model.q_proj and 2 more layers, from" in warning_of_tokens(more, 40_000, "2.13.0")
    assert warning_of_tokens({"score": Layer(64, 2)}, 40_000, "2.13.0") is None


@pytest.mark.parametrize("most", [None, 1, 3, 4, 10, 11])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_product_in_parts_is_the_product(most, batch):
    torch.manual_seed(0)
    left, right = torch.randn(*batch, 5, 10), torch.randn(*batch, 10, 7)
    torch.testing.assert_close(product(left, right, most), left @ right)
