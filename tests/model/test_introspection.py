"""Tests which model is the one under adapters."""

import pytest

from mps_trainer.model.introspection import base_model
from tests.tiny import tiny, with_lora


def add_adapter(model):
    """Adds adapters of transformers, which keep the head."""
    peft = pytest.importorskip("peft")
    try:
        model.add_adapter(peft.LoraConfig(target_modules=["q_proj"], r=2))
    except ValueError as error:  # transformers 5.24 asks for a PEFT that is not out yet
        if "version of PEFT" not in str(error):
            raise
        pytest.skip(str(error))
    return model


@pytest.mark.parametrize("adapt", [with_lora, lambda model: with_lora(model, mixed=True), add_adapter])
def test_base_model_is_the_one_under_its_adapters(adapt):
    llama = tiny("LlamaForCausalLM")
    assert base_model(adapt(llama)) is llama
