"""mlx-lm computes with exported adapters what PEFT computes, on whole and on quantized weights."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from mps_trainer.export import export_to_mlx
from tests.tiny import tiny, tokenizer_of_words

missing = [name for name in ("mlx", "mlx_lm", "peft") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.integration,
    pytest.mark.extra,
    pytest.mark.skipif(
        bool(missing), reason=f"not installed: {', '.join(missing)}: pip install -e '.[libraries,several-macs]'"
    ),
]

IDS = [[11, 40, 23, 7, 45, 12, 39, 25]]
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 3}
SIZES |= {"vocab_size": 128, "initializer_range": 0.15, "bos_token_id": 5, "eos_token_id": 6}
MODELS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"num_key_value_heads": 2},
    "Qwen3ForCausalLM": {"num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True},
}
WEIGHTS: dict[str, dict[str, Any]] = {
    "float32": {},
    "4 bits, group of 32": {"quantize": True, "q_bits": 4, "q_group_size": 32},
    "4 bits, group of 64": {"quantize": True, "q_bits": 4, "q_group_size": 64},
}
ADAPTERS: dict[str, dict[str, Any]] = {
    "LoRA": {"target_modules": "all-linear"},
    "rsLoRA": {"target_modules": "all-linear", "use_rslora": True},
    "DoRA": {"target_modules": "all-linear", "use_dora": True},
    "ranks and scales": {
        "target_modules": ["q_proj", "v_proj", "up_proj", "down_proj"],
        "rank_pattern": {"v_proj": 8, r"layers\.1\.mlp\.up_proj": 2},
        "alpha_pattern": {"down_proj": 5, "0.self_attn.q_proj": 13},
    },
    "first layers": {"target_modules": ["q_proj", "down_proj"], "layers_to_transform": [0, 1]},
    "some layers": {"target_modules": ["layers.0.mlp.up_proj", "layers.2.self_attn.o_proj", "layers.2.mlp.up_proj"]},
}


@pytest.fixture(scope="module", autouse=True)
def on_the_cpu():
    """Computes in float32: Metal's products may round more."""
    import mlx.core

    before = mlx.core.default_device()
    mlx.core.set_default_device(mlx.core.cpu)
    yield
    mlx.core.set_default_device(before)


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """`converted(model, weights)` returns mlx-lm's folder of a model, and one with the same weights for PyTorch."""
    from mlx_lm import convert

    made: dict[tuple[str, str], tuple[Path, Path]] = {}

    def make(name: str, weights: str) -> tuple[Path, Path]:
        if (name, weights) not in made:
            place = tmp_path_factory.mktemp(name)
            for part in (tiny(name, **SIZES, **MODELS[name]), tokenizer_of_words()):
                part.save_pretrained(place / "model")
            convert(str(place / "model"), str(place / "mlx"), dtype="float32", **WEIGHTS[weights])
            plain = place / "model"
            if WEIGHTS[weights]:
                plain = place / "dequantized"
                convert(str(place / "mlx"), str(plain), dtype="float32", dequantize=True)
            made[name, weights] = place / "mlx", plain
        return made[name, weights]

    return make


def with_random_adapter(model: Any, folder: Path, **settings: Any) -> Any:
    """Returns the model with a random adapter, which is saved in `folder`."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **{"r": 4, "lora_alpha": 10, **settings}))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name or "lora_A" in name:
            torch.nn.init.normal_(parameter, std=0.1)
        elif "magnitude" in name:
            parameter.data *= 0.5 + torch.rand_like(parameter)
    adapted.save_pretrained(folder, save_embedding_layers=False)
    return adapted.eval()


def torch_logits(model: Any) -> np.ndarray:
    with torch.no_grad():
        return model(input_ids=torch.tensor(IDS)).logits.numpy()


def mlx_logits(folder: Path, adapter: Path | None = None) -> np.ndarray:
    import mlx.core
    from mlx_lm import load

    model, _ = load(str(folder), adapter_path=None if adapter is None else str(adapter))
    return np.array(model(mlx.core.array(IDS)).astype(mlx.core.float32))


def fuse(monkeypatch: pytest.MonkeyPatch, model: Path, adapter: Path, out: Path, *options: str) -> None:
    from mlx_lm.fuse import main

    words = ["--model", str(model), "--adapter-path", str(adapter), "--save-path", str(out), *options]
    monkeypatch.setattr(sys, "argv", ["mlx_lm.fuse", *words])
    main()


def assert_same(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(found - expected).max() < 1e-4  # 8e-6 was measured, of logits up to 5


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_peft(converted, monkeypatch, tmp_path, name, weights, adapter):
    mlx_folder, plain = converted(name, weights)
    model = transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32).eval()
    before = torch_logits(model)
    assert_same(mlx_logits(mlx_folder), before)
    expected = torch_logits(with_random_adapter(model, tmp_path / "adapter", **ADAPTERS[adapter]))
    assert np.abs(expected - before).max() > 0.5
    export_to_mlx(tmp_path / "adapter", tmp_path / "out")
    assert_same(mlx_logits(mlx_folder, tmp_path / "out"), expected)
    # without --dequantize, the merged weights are rounded to 4 bits again
    dequantize = ["--dequantize"] if WEIGHTS[weights] else []
    fuse(monkeypatch, mlx_folder, tmp_path / "out", tmp_path / "fused", *dequantize)
    assert_same(mlx_logits(tmp_path / "fused"), expected)


def test_adapter_of_the_head_equals_pefts(converted, tmp_path):
    mlx_folder, plain = converted("LlamaForCausalLM", "float32")
    model = transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    expected = torch_logits(with_random_adapter(model, tmp_path / "adapter", target_modules=["lm_head", "k_proj"]))
    export_to_mlx(tmp_path / "adapter", tmp_path / "out")
    assert_same(mlx_logits(mlx_folder, tmp_path / "out"), expected)
