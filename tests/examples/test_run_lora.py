"""run_lora.py, which adapts a language model to a text, from start to finish."""

import json

import pytest
from lora_arguments import EMBEDDED
from lora_data import into_blocks
from lora_model import make_tokenizer
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from .conftest import read

pytestmark = pytest.mark.integration  # whole scripts

SHORT = ("--embedded", "--max_steps", 4, "--disable_tqdm", "True", "--sample_tokens", 4)


def test_perplexity_falls_and_sample_is_of_the_text(run_lora, out):
    status, output, errors = run_lora("--embedded", "--num_train_epochs", 8, "--disable_tqdm", "True")
    assert status == 0, errors
    results = read(out / "all_results.json")
    # An untrained model chooses among all 320 tokens. One that knows how frequent each token is has about 50; only one
    # that has learned which tokens follow others is below 20.
    assert results["perplexity_before"] == pytest.approx(320, rel=0.1)
    assert results["perplexity"] < 20
    assert f"{results['perplexity']:.2f} after." in output
    assert "Sample: Monday. The wind came from the" in output


@pytest.mark.every_device
def test_adapter_is_saved_alone_and_merged_weights_load(run_lora, out, tmp_path):
    status, output, errors = run_lora(*SHORT, "--merge")
    assert status == 0, errors
    adapter = load_file(out / "adapter_model.safetensors")
    assert all(any(part in name for part in ("lora_", "embed_tokens", "lm_head")) for name in adapter)
    learned = [tensor for name, tensor in adapter.items() if "lora_B" in name]
    assert learned
    assert all(bool(tensor.any()) for tensor in learned)  # they begin with zeros
    assert not (out / "model.safetensors").exists()
    assert not any("lora" in name for name in load_file(out / "merged" / "model.safetensors"))
    card = (out / "README.md").read_text()
    assert "on the harbour.txt dataset" in card
    assert "adapter default: LORA with r=" in card
    tokenizer = AutoTokenizer.from_pretrained(out / "merged")
    ids = tokenizer("Monday. The wind", return_tensors="pt").input_ids
    merged = AutoModelForCausalLM.from_pretrained(out / "merged")
    written = merged.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert f"Sample: {tokenizer.decode(written[0])}" in output


@pytest.mark.every_device
def test_resumed_run_equals_uninterrupted_run(run_lora, out, tmp_path):
    command = (*SHORT, "--save_strategy", "steps", "--save_steps", 2, "--save_total_limit", 9)
    assert run_lora(*command)[0] == 0
    whole = out.rename(tmp_path / "whole")
    status, _, errors = run_lora(*command, "--resume_from_checkpoint", whole / "checkpoint-2")
    assert status == 0, errors
    assert [path.name for path in out.glob("checkpoint-*")] == ["checkpoint-4"]  # it did not begin anew
    name = "adapter_model.safetensors"
    assert (out / name).read_bytes() == (whole / name).read_bytes()


def test_saved_model_is_adapted_to_files(run_lora, out, tmp_path):
    text = EMBEDDED.read_text()
    tokenizer = make_tokenizer([text])
    GPT2LMHeadModel(
        GPT2Config(vocab_size=len(tokenizer), n_positions=32, n_embd=16, n_layer=1, n_head=2)
    ).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    lines = [json.dumps({"text": line}) for line in text.splitlines()]
    (tmp_path / "train.jsonl").write_text("\n".join(lines[:30]))
    (tmp_path / "held.txt").write_text("\n".join(text.splitlines()[30:]))
    status, output, errors = run_lora(
        *("--train_file", tmp_path / "train.jsonl", "--validation_file", tmp_path / "held.txt"),
        *("--model_name_or_path", tmp_path / "model", "--target_modules", "c_attn", "c_proj", "--lora_r", 2),
        *("--max_steps", 2, "--disable_tqdm", "True", "--sample_tokens", 4, "--prompt", "The wind " * 99),
    )
    assert status == 0, errors
    assert read(out / "adapter_config.json")["r"] == 2
    assert set(read(out / "adapter_config.json")["target_modules"]) == {"c_attn", "c_proj"}
    assert "Perplexity on text that was held back: " in output


def test_blocks_join_to_the_text(tmp_path):
    text = EMBEDDED.read_text()
    tokenizer = make_tokenizer([text])
    blocks = into_blocks(str(EMBEDDED), tokenizer, 32)
    assert {len(block["input_ids"]) for block in blocks} == {32}
    assert text.startswith(tokenizer.decode([i for block in blocks for i in block["input_ids"]]))
    assert all(block["labels"] == block["input_ids"] for block in blocks)
