"""M1 and M2 compute some large matrix products wrong. A model that has them is warned about."""

import pytest
import torch

from mps_trainer.devices.large_products import Product, product


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


@pytest.mark.parametrize("most", [None, 1, 3, 4, 10, 11])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_product_in_parts_is_the_product(most, batch):
    torch.manual_seed(0)
    left, right = torch.randn(*batch, 5, 10), torch.randn(*batch, 10, 7)
    torch.testing.assert_close(product(left, right, most), left @ right)
