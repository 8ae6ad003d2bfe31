"""Optimizers that a device does not have are refused by name, before the first step."""

import contextlib

import pytest

from mps_trainer.errors import MissingPackageError
from mps_trainer.optim.factory import class_and_settings
from tests.conftest import refusal

PAGED = [f"paged_{name}_{bits}bit" for name in ("adamw", "ademamix", "lion") for bits in (8, 32)]
IN_8_BITS = ["adamw_8bit", "adamw_bnb_8bit", "ademamix_8bit", "lion_8bit", "rmsprop_bnb_8bit"]


@pytest.mark.parametrize("optim", [*PAGED, *IN_8_BITS])
def test_paged_and_8_bit_optimizers_are_refused_on_mps_in_one_line(optim, make_args, mps):
    text = refusal(class_and_settings, make_args(optim=optim))
    assert text.startswith(f"optim='{optim}' does not work on mps: ")
    assert "Use optim='adamw_torch_8bit'" in text


@pytest.mark.parametrize("optim", ["lion_32bit", "ademamix", "rmsprop_bnb", "rmsprop_bnb_32bit", "adamw_torch_8bit"])
def test_others_are_not(optim, make_args, mps):
    with contextlib.suppress(MissingPackageError):
        class_and_settings(make_args(optim=optim))
