"""Models of transformers without their weights."""

import pytest
import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensor

from mps_trainer import MisconfigurationException
from mps_trainer.tools.fit.fake_models import models_are_fake
from tests.tiny import tiny


def llama(**settings):
    given = {"vocab_size": 48, "intermediate_size": 32, "tie_word_embeddings": True, "attention_bias": True}
    return tiny("LlamaForCausalLM", **{**given, **settings})


@pytest.fixture
def saved(tmp_path):
    llama().bfloat16().save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()  # nobody needs it
    return tmp_path / "model"


def test_models_are_made_without_weights_and_only_inside():
    with models_are_fake():
        model = llama()
        large = llama(vocab_size=10**9)  # 64 GB
    for each in (*model.parameters(), *large.parameters(), *model.buffers()):
        assert isinstance(each, FakeTensor)
        assert each.device.type == "cpu"
    assert model.lm_head.weight is model.model.embed_tokens.weight
    after = llama()
    assert not any(isinstance(each, FakeTensor) for each in after.parameters())
    assert "__init__" in vars(transformers.LlamaForCausalLM)
    assert transformers.LlamaForCausalLM.__init__.__module__.endswith("modeling_llama")
    assert not hasattr(transformers.LlamaForCausalLM.__init__, "__wrapped__")


@pytest.mark.parametrize("asked", [None, "auto", "bfloat16", torch.float32, torch.float16])
def test_pretrained_models_have_the_format_asked_for(saved, asked):
    with models_are_fake():
        settings = {} if asked is None else {"dtype": asked}
        model = transformers.AutoModelForCausalLM.from_pretrained(saved, attn_implementation="eager", **settings)
    expected = {None: torch.bfloat16, "auto": torch.bfloat16, "bfloat16": torch.bfloat16}.get(asked, asked)
    assert model.dtype is expected
    assert model.config._attn_implementation == "eager"
    assert not model.training


def test_formats_change_and_shared_weights_stay_shared(saved):
    with models_are_fake():
        model = transformers.AutoModelForCausalLM.from_pretrained(saved).to("cpu").float()
        model.resize_token_embeddings(64)
    assert model.dtype is torch.float32
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.lm_head.weight.shape == (64, 16)


def test_a_script_may_save_load_and_generate(tmp_path):
    prompt = torch.tensor([[1, 2]])
    with models_are_fake():
        llama().save_pretrained(tmp_path / "own")
        asked = {"output_loading_info": True, "from_tf": False}  # the second is of transformers 4, and has no effect
        model, keys = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "own", **asked)
        assert model.generate(input_ids=prompt, max_new_tokens=3) is prompt
    assert model.config.vocab_size == 48
    assert model.config.name_or_path == str(tmp_path / "own")
    assert keys["missing_keys"] == set()
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["config.json"]


DOUBLE = {"load_in_4bit": True, "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("settings", "bytes_per_number", "dtype"),
    [
        ({"load_in_4bit": True}, 0.5625, torch.float32),
        (DOUBLE, 0.5158691, torch.bfloat16),
        ({"load_in_8bit": True}, 1, torch.float16),
    ],
)
def test_linear_layers_are_quantized_but_for_the_head(saved, settings, bytes_per_number, dtype):
    with models_are_fake():
        model = transformers.AutoModelForCausalLM.from_pretrained(saved, quantization_config=settings)
    layer = model.model.layers[0].mlp.up_proj
    assert layer.weight.nbytes == round(16 * 32 * bytes_per_number)
    assert layer.compute_dtype is dtype
    assert model.lm_head.weight.dtype is torch.bfloat16
    assert not any(each.requires_grad for each in model.parameters())


def test_other_quantization_is_refused(saved):
    with models_are_fake(), pytest.raises(MisconfigurationException, match="another method than bitsandbytes"):
        transformers.AutoModelForCausalLM.from_pretrained(saved, quantization_config={"quant_method": "hqq"})
