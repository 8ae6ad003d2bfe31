"""Tests which model is the one under adapters."""

import pytest

from mps_trainer.model.introspection import base_model
from tests.tiny import tiny

peft = pytest.importorskip("peft")
LORA = peft.LoraConfig(target_modules=["q_proj"], r=2)


def add_adapter(model):
    try:
        model.add_adapter(LORA)
    except ValueError as error:  # transformers 5.24 asks for a PEFT that is not out yet
        if "version of PEFT" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize(
    "adapt",
    [
        lambda model: model,
        lambda model: peft.get_peft_model(model, LORA),
        lambda model: peft.get_peft_model(model, LORA, mixed=True),
        lambda model: add_adapter(model) or model,  # adapters of transformers, which keep the head
    ],
)
def test_base_model_is_the_one_under_its_adapters(adapt):
    llama = tiny("LlamaForCausalLM")
    assert base_model(adapt(llama)) is llama
