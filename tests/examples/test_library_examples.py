"""The examples for TRL and sentence-transformers, without these libraries. tests/libraries runs them with both."""

from __future__ import annotations

import importlib

import pytest

from mps_trainer import MisconfigurationException
from mps_trainer.scripts import loading


@pytest.mark.parametrize(
    ("module", "library", "says"),
    [
        ("sft_arguments", "trl", "run_sft.py needs trl, which is not installed."),
        (
            "bi_encoder_arguments",
            "sentence_transformers",
            "train_bi_encoder.py needs sentence-transformers, which",
        ),
    ],
)
def test_a_missing_library_is_named_with_the_extra_that_brings_it(module, library, says, monkeypatch):
    find = loading.find_spec
    monkeypatch.setattr(loading, "find_spec", lambda name: None if name == library else find(name))
    with pytest.raises(MisconfigurationException) as caught:
        importlib.import_module(module).parse(["--embedded"])
    assert str(caught.value).startswith(says)
    assert str(caught.value).endswith("Install it: pip install 'mps_trainer[libraries]'.")
