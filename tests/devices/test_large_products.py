"""Products in parts are right on M1 and M2, which compute some large ones wrong."""

import pytest
import torch

from mps_trainer.devices.large_products import product


@pytest.mark.parametrize("most", [None, 1, 3, 4, 10, 11])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_product_in_parts_is_the_product(most, batch):
    torch.manual_seed(0)
    left, right = torch.randn(*batch, 5, 10), torch.randn(*batch, 10, 7)
    torch.testing.assert_close(product(left, right, most), left @ right)
