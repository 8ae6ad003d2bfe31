"""Tests which model is the one under adapters."""

import pytest

from mps_trainer.model.introspection import base_model
from tests.tiny import tiny, with_lora


@pytest.mark.parametrize("adapt", [with_lora, lambda model: with_lora(model, mixed=True)])
def test_base_model_is_the_one_under_its_adapters(adapt):
    llama = tiny("LlamaForCausalLM")
    assert base_model(adapt(llama)) is llama
