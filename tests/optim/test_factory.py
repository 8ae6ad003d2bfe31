"""Optimizers that a device does not have are refused by name, before the first step."""

from __future__ import annotations

import contextlib

import pytest

from mps_trainer.errors import MisconfigurationException, MissingPackageError
from mps_trainer.optim.factory import class_and_settings

PAGED = [f"paged_{name}_{bits}bit" for name in ("adamw", "ademamix", "lion") for bits in (8, 32)]
IN_8_BITS = ["adamw_8bit", "adamw_bnb_8bit", "ademamix_8bit", "lion_8bit", "rmsprop_bnb_8bit"]


def refusal(args) -> str:
    with pytest.raises(MisconfigurationException) as caught:
        class_and_settings(args)
    return str(caught.value)


@pytest.mark.parametrize("optim", [*PAGED, *IN_8_BITS])
def test_paged_and_8_bit_optimizers_are_refused_on_mps_in_one_line(optim, make_args, mps):
    text = refusal(make_args(optim=optim))
    assert text.startswith(f"optim='{optim}' does not work on mps: ")
    assert "Use optim='adamw_torch_8bit'" in text
    assert "\n" not in text


@pytest.mark.parametrize("optim", ["lion_32bit", "ademamix", "rmsprop_bnb", "rmsprop_bnb_32bit", "adamw_torch_8bit"])
def test_others_are_not(optim, make_args, mps):
    with contextlib.suppress(MissingPackageError):
        class_and_settings(make_args(optim=optim))
