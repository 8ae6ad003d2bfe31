"""mlx-lm computes with exported adapters what PEFT computes, on whole and on quantized weights."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from mps_trainer import Trainer, TrainingArguments, load_mlx_model
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


# Models in MLX's format in PyTorch

LOADED: dict[str, dict[str, Any]] = {
    "Qwen3ForCausalLM": {"num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True},
    "LlamaForCausalLM": {"num_key_value_heads": 2},
    "Gemma2ForCausalLM": {"num_key_value_heads": 2, "head_dim": 32, "query_pre_attn_scalar": 32},
    "MistralForCausalLM": {"num_key_value_heads": 2},
    "Phi3ForCausalLM": {"num_key_value_heads": 2},
}
WIDE = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "vocab_size": 128}
WIDE |= {"bos_token_id": 5, "eos_token_id": 6}


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    """`quantized(model, bits, group_size, dtype)` returns mlx-lm's folder of a model."""
    from mlx_lm import convert

    def make(name: str, bits: int, group_size: int, dtype: str = "float32") -> Path:
        place = tmp_path_factory.mktemp(name)
        for part in (tiny(name, **WIDE, **LOADED[name]), tokenizer_of_words()):
            part.save_pretrained(place / "model")
        settings = {"quantize": True, "q_bits": bits, "q_group_size": group_size}
        convert(str(place / "model"), str(place / "mlx"), dtype=dtype, **settings)
        return place / "mlx"

    return make


@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("name", ["Qwen3ForCausalLM", "LlamaForCausalLM", "Gemma2ForCausalLM"])
def test_loaded_model_has_logits_of_mlx_lm(quantized, name, bits, group_size):
    folder = quantized(name, bits, group_size)
    model = load_mlx_model(folder, dtype=torch.float32, device="cpu")
    expected, given = mlx_logits(folder), torch_logits(model)
    assert np.abs(given - expected).max() < 1e-4
    assert np.ptp(expected) > 0.1


@pytest.mark.parametrize("bits", [2, 3, 5, 6])
def test_other_bits_have_logits_of_mlx_lm(quantized, bits):
    folder = quantized("Qwen3ForCausalLM", bits, 64)
    assert_same(torch_logits(load_mlx_model(folder, dtype=torch.float32, device="cpu")), mlx_logits(folder))


@pytest.mark.parametrize("name", LOADED)
def test_loaded_model_has_logits_of_mlx_lm_in_bfloat16(quantized, name):
    """mlx-lm's own logits are up to 2.2 % of their range from those in float32: its product on the CPU rounds more."""
    folder = quantized(name, 4, 64, "bfloat16")
    theirs, found = mlx_logits(folder), {}
    for dtype in (torch.float32, torch.bfloat16):
        model = load_mlx_model(folder, dtype=dtype, device="cpu").eval()
        with torch.no_grad():
            found[dtype] = model(input_ids=torch.tensor(IDS)).logits.float().numpy()
    exact, ours = found[torch.float32], found[torch.bfloat16]
    assert np.abs(ours - exact).max() < 0.01 * np.ptp(exact)
    assert np.abs(theirs - exact).max() < 0.03 * np.ptp(exact)


@pytest.mark.parametrize("name", ["Qwen3ForCausalLM", "LlamaForCausalLM", "Gemma2ForCausalLM"])
def test_trained_adapter_answers_in_mlx_lm(quantized, monkeypatch, tmp_path, name):
    """From MLX's 4-bit weights to an answer of mlx-lm, without 16-bit weights on the way."""
    from mlx_lm import generate, load
    from mlx_lm.sample_utils import make_sampler
    from peft import LoraConfig, get_peft_model

    folder = quantized(name, 4, 64)
    torch.manual_seed(0)
    model = get_peft_model(
        load_mlx_model(folder, dtype=torch.float32, device="cpu"),
        LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules="all-linear"),
    )
    draw = torch.Generator().manual_seed(0)
    texts = []
    for _ in range(64):  # each word is followed by the word three places on
        start = int(torch.randint(0, 40, (), generator=draw))
        text = [7 + (start + 3 * step) % 40 for step in range(12)]
        texts.append({"input_ids": text, "labels": text})
    args = TrainingArguments(
        output_dir=str(tmp_path / "run"),
        max_steps=50,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
        save_strategy="no",
        logging_steps=50,
    )
    before = torch_logits(model.eval())
    trainer = Trainer(model, args, train_dataset=texts)
    trainer.train()
    trainer.save_model(str(tmp_path / "adapter"))
    model.eval()
    expected = torch_logits(model)
    assert np.abs(expected - before).max() > 0.5
    export_to_mlx(tmp_path / "adapter", tmp_path / "out")
    assert np.abs(mlx_logits(folder, tmp_path / "out") - expected).max() < 1e-3
    fuse(monkeypatch, folder, tmp_path / "out", tmp_path / "fused", "--dequantize")
    assert np.abs(mlx_logits(tmp_path / "fused") - expected).max() < 1e-3

    there, tokenizer = load(str(folder), adapter_path=str(tmp_path / "out"))
    for number in range(50):
        prompt = [7 + (number + 3 * step) % 40 for step in range(4)]
        answer = generate(there, tokenizer, prompt=prompt, max_tokens=6, sampler=make_sampler(temp=0.0))
        ours = model.generate(
            input_ids=torch.tensor([prompt]), attention_mask=torch.ones(1, 4), max_new_tokens=6, do_sample=False
        )
        assert answer == tokenizer.decode(ours[0, 4:].tolist(), skip_special_tokens=True), number
