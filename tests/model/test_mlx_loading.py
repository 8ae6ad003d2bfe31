"""Models in MLX's quantized format, loaded into transformers' models and trained with adapters."""

import copy
import json
import shutil

import pytest
import torch
from torch import nn

import mps_trainer
from mps_trainer import MisconfigurationException, Trainer, load_mlx_model
from mps_trainer.callbacks.overview import first_lines
from mps_trainer.fit import estimate
from mps_trainer.model.mlx_layers import MLXEmbedding, MLXLinear
from mps_trainer.model.mlx_loading import is_mlx_model
from mps_trainer.model.patches import deferred_logits
from tests.conftest import assert_same_weights, refusal, weights
from tests.mlx_format import save_quantized
from tests.tiny import tiny, with_lora

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 96}
KINDS = {
    "Qwen3ForCausalLM": {"num_key_value_heads": 2, "head_dim": 32},
    "LlamaForCausalLM": {"tie_word_embeddings": True},
    "MistralForCausalLM": {"num_key_value_heads": 2},
    "Gemma2ForCausalLM": {"num_key_value_heads": 2, "head_dim": 32},
    "Gemma3ForCausalLM": {"num_key_value_heads": 2, "head_dim": 32},
    "Phi3ForCausalLM": {"num_key_value_heads": 2},
    "Qwen2ForCausalLM": {"num_key_value_heads": 2},
}


def made(name="LlamaForCausalLM", **settings):
    return tiny(name, **{**SIZES, **KINDS[name], **settings})


@pytest.fixture
def saved(tmp_path):
    """Saves a model in MLX's format and returns its folder, and the model with the weights that were saved."""

    def save(name="LlamaForCausalLM", layers=(), bits=4, group_size=32, **settings):
        model, folder = made(name, **settings), tmp_path / "mlx"
        save_quantized(model, folder, bits, group_size, **dict(layers))
        return folder, model.eval()

    return save


def words(count=12, rows=2):
    return torch.randint(7, 47, (rows, count), generator=torch.Generator().manual_seed(0))


def examples(count=16):
    return [{"input_ids": row, "labels": row} for row in words(rows=count)]


@pytest.mark.parametrize("name", KINDS)
def test_loaded_model_equals_dequantized_one(saved, name):
    folder, expected = saved(name)
    model = load_mlx_model(folder, dtype=torch.float32, device="cpu")
    with torch.no_grad():
        torch.testing.assert_close(model(words()).logits, expected(words()).logits, atol=1e-5, rtol=1e-4)
    assert not any(each.requires_grad for each in model.parameters())
    assert not any(each.is_meta for each in (*model.parameters(), *model.buffers()))
    assert isinstance(model.get_input_embeddings(), MLXEmbedding)
    assert isinstance(model.get_output_embeddings(), MLXLinear)
    linear = [each for each in model.modules() if isinstance(each, nn.Linear)]
    assert all(isinstance(each, MLXLinear) for each in linear)
    assert model.name_or_path == str(folder)


@pytest.mark.parametrize("group_size", [32, 64])
@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
def test_bits_and_groups_of_folder_are_used(saved, bits, group_size):
    folder, expected = saved(bits=bits, group_size=group_size)
    model = load_mlx_model(folder, dtype=torch.float32, device="cpu")
    with torch.no_grad():
        torch.testing.assert_close(model(words()).logits, expected(words()).logits, atol=1e-5, rtol=1e-4)
    layer = model.model.layers[0].mlp.down_proj
    assert (layer.bits, layer.scales.shape[1]) == (bits, 128 // group_size)


def test_layers_may_differ_and_be_left_plain(saved):
    layers = {
        "model__layers__0__mlp__down_proj": {"bits": 8, "group_size": 64},
        "model__layers__1__self_attn__v_proj": False,
        "model__embed_tokens": False,
    }
    folder, expected = saved(layers=layers)
    model = load_mlx_model(folder, dtype=torch.float32, device="cpu")
    with torch.no_grad():
        torch.testing.assert_close(model(words()).logits, expected(words()).logits, atol=1e-5, rtol=1e-4)
    assert model.model.layers[0].mlp.down_proj.bits == 8
    assert type(model.model.layers[1].self_attn.v_proj) is nn.Linear
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_head_shares_weights_of_embeddings(saved):
    folder, _ = saved(tie_word_embeddings=True)
    model = load_mlx_model(folder, device="cpu")
    assert model.lm_head.packed_weight is model.model.embed_tokens.packed_weight
    assert model.lm_head.scales is model.model.embed_tokens.scales
    folder, _ = saved(tie_word_embeddings=False)
    model = load_mlx_model(folder, device="cpu")
    assert model.lm_head.packed_weight is not model.model.embed_tokens.packed_weight


def test_weight_of_head_can_be_read(saved):
    """TRL's loss does so."""
    folder, plain = saved()
    head = load_mlx_model(folder, dtype=torch.float32, device="cpu").lm_head
    torch.testing.assert_close(head.weight, plain.lm_head.weight.data, atol=1e-6, rtol=1e-5)
    assert [name for name, _ in head.named_parameters()] == ["packed_weight"]
    assert type(head.weight[2:4]) is torch.Tensor
    with pytest.raises(MisconfigurationException):
        head.weight.data += 1


def test_weights_go_to_device_of_trainer(mps, saved):
    folder, _ = saved()
    model = load_mlx_model(folder)
    assert {each.device.type for each in (*model.parameters(), *model.buffers())} == {"mps"}
    assert model.dtype is torch.bfloat16


def test_loading_needs_memory_of_packed_weights(mps, saved):
    folder, expected = saved(hidden_size=128, intermediate_size=256, num_hidden_layers=6)
    load_mlx_model(folder)  # the device is tried once in a process
    mps.reset()
    before = mps.counters()["bytes_live"]
    model = load_mlx_model(folder)
    packed = sum(each.nbytes for each in (*model.parameters(), *model.buffers()))
    assert mps.report().bytes_peak - before <= 1.1 * packed
    of_float32 = 4 * sum(each.numel() for each in expected.parameters())
    assert packed < 0.25 * of_float32  # 4 bits, and two numbers in bfloat16 for each 32


# Training


def adapted(folder, dtype=torch.float32, device="cpu", **settings):
    model = load_mlx_model(folder, dtype=dtype, device=device)
    torch.manual_seed(1)
    return with_lora(model, target_modules="all-linear", **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gradient_checkpointing": True},
        {"bf16": True},
        {"chunked_attention": True},
        {"gradient_accumulation_steps": 2},
    ],
    ids=str,
)
def test_adapter_learns_as_on_dequantized_model(saved, make_args, settings):
    folder, plain = saved()
    found = []
    for model in (plain, load_mlx_model(folder, dtype=torch.float32, device="cpu")):
        torch.manual_seed(1)
        trainer = Trainer(
            with_lora(model, target_modules="all-linear"),
            make_args(max_steps=5, learning_rate=1e-2, **settings),
            train_dataset=examples(),
        )
        trainer.train()
        found.append({name: each for name, each in weights(trainer.model).items() if "lora_" in name})
    near = 2e-2 if "bf16" in settings else 1e-4
    torch.testing.assert_close(*found, atol=near, rtol=near)
    assert any("lora_B" in name and bool(each.any()) for name, each in found[0].items())


@pytest.mark.every_device
def test_loss_without_logits_equals_loss_with_them(saved, make_args, device, monkeypatch):
    folder, _ = saved()
    monkeypatch.setattr(deferred_logits, "CHUNK", 1024)
    found, calls = [], []
    plain = deferred_logits.ChunkedCrossEntropy.forward

    def counted(*given):
        calls.append(given)
        return plain(*given)

    monkeypatch.setattr(deferred_logits.ChunkedCrossEntropy, "forward", staticmethod(counted))
    for chunked in (False, True):
        args = make_args(max_steps=3, learning_rate=1e-2, chunked_cross_entropy=chunked)
        trainer = Trainer(adapted(folder, device=device), args, train_dataset=examples())
        trainer.train()
        found.append({name: each for name, each in weights(trainer.model).items() if "lora_" in name})
        assert bool(calls) is chunked
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-4)


@pytest.mark.every_device
def test_resumed_run_equals_whole_run(saved, make_args, device, tmp_path):
    folder, _ = saved()

    def train(name, resume=None):
        args = make_args(
            output_dir=str(tmp_path / name),
            max_steps=4,
            save_strategy="steps",
            save_steps=2,
            per_device_train_batch_size=4,
        )
        model = adapted(folder, torch.bfloat16, device, lora_dropout=0.1)
        trainer = Trainer(model, args, train_dataset=examples())
        trainer.train(resume_from_checkpoint=resume)
        return weights(trainer.model)

    whole = train("whole")
    torch.manual_seed(99)
    assert_same_weights(train("resumed", str(tmp_path / "whole" / "checkpoint-2")), whole)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_memory_is_that_of_estimate(mps, saved, make_args, dtype):
    folder, _ = saved(hidden_size=128, intermediate_size=512, num_hidden_layers=4, vocab_size=512)
    before = mps.counters()["bytes_live"]
    args = make_args(max_steps=3, per_device_train_batch_size=4)
    trainer = Trainer(adapted(folder, dtype, "mps"), args, train_dataset=examples(32))
    report = estimate(trainer)
    mps.reset()
    trainer.train()
    assert report.bytes_peak == pytest.approx(mps.report().bytes_peak - before, rel=0.1)


@pytest.mark.parametrize("safe", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("target", ["all-linear", ["lm_head"]])
def test_merging_into_quantized_weights_is_refused(saved, target, bits, safe):
    folder, _ = saved(bits=bits, tie_word_embeddings=False)
    model = with_lora(load_mlx_model(folder, device="cpu"), target_modules=target)
    assert "merge it with mlx_lm.fuse" in refusal(model.merge_and_unload, safe_merge=safe)


@pytest.mark.parametrize("bits", [4, 8])
def test_dora_reads_dequantized_weights(saved, bits):
    folder, plain = saved(bits=bits)
    models = [load_mlx_model(folder, dtype=torch.float32, device="cpu"), plain]
    models = [with_lora(each, target_modules="all-linear", use_dora=True).eval() for each in models]
    with torch.no_grad():
        first, second = (each(words()).logits for each in models)
    torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-4)
    for (name, first), (_, second) in zip(*(each.named_parameters() for each in models), strict=False):
        if "magnitude" in name:
            torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-4)


def test_biases_learn(saved, make_args):
    folder, _ = saved("Qwen2ForCausalLM")
    model = adapted(folder, bias="all")
    before = weights(model)
    Trainer(model, make_args(max_steps=2, learning_rate=1e-2), train_dataset=examples()).train()
    biases = [name for name in before if name.endswith("proj.base_layer.bias")]
    assert biases
    assert not any(torch.equal(before[name], weights(model)[name]) for name in biases)


def test_model_cannot_be_saved_as_a_whole(saved, tmp_path):
    folder, _ = saved()
    model = load_mlx_model(folder, device="cpu")
    assert "cannot be saved as a whole" in refusal(model.save_pretrained, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    model.tie_weights()
    copied = copy.deepcopy(model)
    with torch.no_grad():
        assert torch.equal(copied(words()).logits, model(words()).logits)


def test_model_prepared_for_quantized_training_trains(saved, make_args):
    """PEFT then casts the norms to float32, and so the activations."""
    peft = pytest.importorskip("peft")
    folder, _ = saved()
    frozen = load_mlx_model(folder, dtype="bfloat16", device="cpu")
    model = with_lora(peft.prepare_model_for_kbit_training(frozen), target_modules="all-linear")
    trainer = Trainer(model, make_args(max_steps=2), train_dataset=examples())
    assert trainer.train().training_loss > 0


def test_model_without_adapter_is_refused(saved, make_args):
    folder, _ = saved()
    trainer = Trainer(load_mlx_model(folder, device="cpu"), make_args(), train_dataset=examples())
    assert "There is nothing to train" in refusal(trainer.train)


def test_step_on_mps_does_not_wait(mps, saved, make_args):
    folder, _ = saved()
    callback = mps_trainer.simulator.SimulationCallback(mps)
    args = make_args(max_steps=4, logging_steps=100)
    Trainer(adapted(folder, device="mps"), args, train_dataset=examples(32), callbacks=[callback]).train()
    assert [step.blocking_reads for step in callback.steps[1:]] == [0, 0, 0]


# What is refused


def test_folder_in_format_of_transformers_is_refused(tmp_path):
    made().save_pretrained(tmp_path / "plain")
    assert 'has no "quantization", so it is not in MLX\'s quantized format' in refusal(
        load_mlx_model, tmp_path / "plain"
    )


def test_name_that_is_no_folder_is_refused(tmp_path):
    said = refusal(load_mlx_model, tmp_path / "absent")
    assert f"There is no folder {tmp_path / 'absent'}, and it cannot be loaded from the hub" in said
    assert "it cannot be loaded from the hub" in refusal(load_mlx_model, "some/model", local_files_only=True)


def edit_config(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config.update(changes)
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"quantization": {"bits": 7, "group_size": 32}}, "has bits 7 and group_size 32; MLX's are one of"),
        ({"quantization": {"bits": 4}}, "has bits 4 and group_size None"),
        ({"quantization": {"bits": 4, "group_size": 32, "mode": "mxfp4"}}, "has mode 'mxfp4', and only affine"),
        (
            {"quantization": {"bits": 8, "group_size": 32}},
            "its tensor model.embed_tokens.weight has the shape (96, 8)",
        ),
        (
            {"quantization": {"bits": 4, "group_size": 64}},
            "its tensor model.embed_tokens.scales has the shape (96, 2)",
        ),
        ({"num_hidden_layers": 3}, "it has no tensor model.layers.2."),
        ({"num_hidden_layers": 1}, "transformers' model has no place for its tensor model.layers.1."),
        ({"model_type": "nonsense"}, "transformers cannot read its config.json"),
        ({"model_type": "vit"}, "it is no language model that transformers knows"),
    ],
)
def test_config_that_does_not_fit_is_refused(saved, change, expected):
    folder, _ = saved()
    edit_config(folder, **change)
    assert expected in refusal(load_mlx_model, folder, device="cpu")


@pytest.mark.parametrize("dtype", ["bf17", "int8", torch.int8, None])
def test_other_dtypes_are_refused(saved, dtype):
    folder, _ = saved()
    assert "is not a floating-point dtype of torch" in refusal(load_mlx_model, folder, dtype=dtype, device="cpu")


def test_damaged_files_are_refused(saved):
    folder, _ = saved()
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "model.safetensors cannot be read" in refusal(load_mlx_model, folder, device="cpu")
    path.unlink()
    assert "it has no *.safetensors" in refusal(load_mlx_model, folder, device="cpu")
    (folder / "config.json").write_text("{")
    assert "its config.json cannot be read" in refusal(load_mlx_model, folder, device="cpu")
    shutil.rmtree(folder)
    with pytest.raises(MisconfigurationException):
        load_mlx_model(folder)


def test_weights_stay_as_they_were(saved, make_args):
    folder, _ = saved()
    model = adapted(folder)
    before = {name: each for name, each in weights(model).items() if "lora_" not in name}
    Trainer(model, make_args(max_steps=2), train_dataset=examples()).train()
    assert_same_weights(before, {name: each for name, each in weights(model).items() if "lora_" not in name})


def adapter_of(model):
    return [each for name, each in model.named_parameters() if "lora_" in name]


def test_first_lines_name_format(saved, make_args):
    folder, plain = saved(layers={"model__layers__0__mlp__down_proj": {"bits": 8, "group_size": 64}})
    model, args = adapted(folder), make_args(max_steps=1)
    trainer = Trainer(model, args, train_dataset=examples())
    trainer.train()
    lines = first_lines(args, trainer.state, model, None)
    assert "  frozen weights in MLX's format, 4 and 8 bits: dequantized in each pass" in lines
    count = sum(each.numel() for each in (*plain.parameters(), *adapter_of(model)))
    assert f"  {count:,} parameters, {sum(each.numel() for each in adapter_of(model)):,} of them trained" in lines[1]


def test_format_is_found(saved, tmp_path):
    folder, _ = saved()
    assert is_mlx_model(folder)
    made().save_pretrained(tmp_path / "plain")
    assert not is_mlx_model(tmp_path / "plain")
    assert not is_mlx_model("no/such-model", local_files_only=True)
