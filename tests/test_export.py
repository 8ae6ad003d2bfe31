"""An exported adapter has mlx-lm's names and layout and computes the same; what mlx-lm cannot represent is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mps_trainer.export import export_to_mlx
from tests.conftest import refusal

Q, V = "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.v_proj"
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 8, "bias": "none", "task_type": "CAUSAL_LM"}
IN, OUT = 6, 4


def tensors_of(ranks: dict[str, int], **more: torch.Tensor) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    found = {}
    for module, rank in ranks.items():
        found[f"base_model.model.{module}.lora_A.weight"] = torch.randn(rank, IN)
        found[f"base_model.model.{module}.lora_B.weight"] = torch.randn(OUT, rank)
    return {**found, **{f"base_model.model.{name}": tensor for name, tensor in more.items()}}


@pytest.fixture
def adapter(tmp_path):
    """`adapter(ranks, tensors, **config)` writes the folder of an adapter, and returns it and its tensors."""

    def write(ranks: dict | None = None, more: dict | None = None, **config: object) -> tuple[Path, dict]:
        folder = tmp_path / "adapter"
        folder.mkdir()
        tensors = tensors_of(ranks or {Q: 2, V: 2}, **(more or {}))
        save_file(tensors, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
        return folder, tensors

    return write


def updates(folder: Path) -> dict[str, torch.Tensor]:
    """Returns the change of each weight, out x in, as mlx-lm computes it."""
    config = json.loads((folder / "adapter_config.json").read_text())["lora_parameters"]
    tensors = load_file(folder / "adapters.safetensors")
    for module in config["keys"]:
        assert tensors[f"{module}.lora_a"].shape == (IN, config["rank"])
        assert tensors[f"{module}.lora_b"].shape == (config["rank"], OUT)
    return {
        module: (config["scale"] * tensors[f"{module}.lora_b"].double().T) @ tensors[f"{module}.lora_a"].double().T
        for module in config["keys"]
    }


def update(tensors: dict[str, torch.Tensor], module: str, scale: float) -> torch.Tensor:
    """Returns the change of a weight, as PEFT computes it."""
    a, b = (tensors[f"base_model.model.{module}.lora_{part}.weight"].double() for part in "AB")
    return scale * b @ a


def test_files_have_mlx_lms_names_and_layout(adapter, tmp_path):
    folder, tensors = adapter(lora_dropout=0.1)
    returned = export_to_mlx(folder, tmp_path / "deep" / "out")
    out = tmp_path / "deep" / "out"
    assert sorted(path.name for path in out.iterdir()) == ["adapter_config.json", "adapters.safetensors"]
    assert json.loads((out / "adapter_config.json").read_text()) == returned == {
        "fine_tune_type": "lora",
        "num_layers": 2,
        "lora_parameters": {"rank": 2, "scale": 4.0, "dropout": 0.1, "keys": [Q, V]},
    }  # fmt: skip
    written = load_file(out / "adapters.safetensors")
    assert written.keys() == {f"{module}.lora_{part}" for module in (Q, V) for part in "ab"}
    for module in (Q, V):
        for part in "AB":
            transposed = tensors[f"base_model.model.{module}.lora_{part}.weight"].T
            assert torch.equal(written[f"{module}.lora_{part.lower()}"], transposed)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_half_precision_is_kept(adapter, tmp_path, kind):
    folder, tensors = adapter()
    save_file({name: tensor.to(kind) for name, tensor in tensors.items()}, folder / "adapter_model.safetensors")
    export_to_mlx(folder, tmp_path / "out")
    assert {tensor.dtype for tensor in load_file(tmp_path / "out" / "adapters.safetensors").values()} == {kind}


def test_rslora_divides_by_the_root_of_the_rank(adapter, tmp_path):
    folder, tensors = adapter(ranks={Q: 4}, r=4, use_rslora=True)
    assert export_to_mlx(folder, tmp_path / "out")["lora_parameters"]["scale"] == 4.0  # 8 / sqrt(4)
    torch.testing.assert_close(updates(tmp_path / "out"), {Q: update(tensors, Q, 4.0)})


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_other_ranks_and_scales_compute_the_same(adapter, tmp_path, kind):
    """PEFT takes the first pattern that matches the end of a name, as a regular expression."""
    ranks = {Q: 2, V: 2, "model.layers.1.mlp.up_proj": 3, "model.layers.11.mlp.up_proj": 1, "lm_head": 2}
    patterns = {
        "rank_pattern": {"11.mlp.up_proj": 1, r"layers\.1\..*up_proj": 3, "up_proj": 7},
        "alpha_pattern": {"v_proj": 3, "lm_head": 0.7, "attn.v_proj": 9},
    }
    folder, tensors = adapter(ranks, **patterns)
    tensors = {name: tensor.to(kind) for name, tensor in tensors.items()}
    save_file(tensors, folder / "adapter_model.safetensors")
    config = export_to_mlx(folder, tmp_path / "out")
    assert config["num_layers"] == 12
    assert config["lora_parameters"]["rank"] == 3
    scales = {Q: 4, V: 1.5, "model.layers.1.mlp.up_proj": 8 / 3, "model.layers.11.mlp.up_proj": 8, "lm_head": 0.35}
    found = updates(tmp_path / "out")
    assert found.keys() == scales.keys()
    for module, scale in scales.items():
        torch.testing.assert_close(found[module], update(tensors, module, scale), rtol=1e-6, atol=1e-6)


def test_dora_keeps_the_magnitudes(adapter, tmp_path):
    magnitude = torch.rand(OUT)
    folder, _ = adapter({Q: 2}, {f"{Q}.lora_magnitude_vector": magnitude}, use_dora=True)
    assert export_to_mlx(folder, tmp_path / "out")["fine_tune_type"] == "dora"
    assert torch.equal(load_file(tmp_path / "out" / "adapters.safetensors")[f"{Q}.m"], magnitude)


def test_names_of_compiled_parts_are_plain(adapter, tmp_path):
    folder, _ = adapter({"model.layers.0._orig_mod.mlp.up_proj": 2})
    config = export_to_mlx(folder, tmp_path / "out")
    assert config["lora_parameters"]["keys"] == ["model.layers.0.mlp.up_proj"]


def test_checkpoint_of_a_run_is_exported(make_args, tmp_path):
    from mps_trainer import Trainer
    from tests.tiny import tiny, with_lora

    model = with_lora(tiny("LlamaForCausalLM"), target_modules="all-linear", lora_dropout=0.1)
    args = make_args(max_steps=2, save_strategy="steps", save_steps=2)
    Trainer(model, args, train_dataset=[{"input_ids": [3, 4, 5], "labels": [3, 4, 5]}] * 8).train()
    config = export_to_mlx(Path(args.output_dir) / "checkpoint-2", tmp_path / "out")
    assert len(config["lora_parameters"]["keys"]) == 14
    said = refusal(export_to_mlx, args.output_dir, tmp_path / "other")
    assert "Name one of the folders in it that have one: checkpoint-2." in said


EMBEDDING = {"model.embed_tokens.lora_embedding_A": torch.ones(2, 8)}
SAVED = {"lm_head.modules_to_save.weight": torch.ones(2)}
DOUBLE = {f"{Q}.lora_A.weight": torch.ones(2, IN, dtype=torch.float64)}
REFUSED = {
    "embeddings": ({}, EMBEDDING, {}, "only LoRA and DoRA of linear layers"),
    "a whole module": ({}, SAVED, {}, "only LoRA and DoRA of linear layers"),
    "other names": (
        {"transformer.h.0.attn.c_attn": 2},
        {},
        {},
        "'transformer.h.0.attn.c_attn', which may have another",
    ),
    "experts": ({"model.layers.0.mlp.experts.3.up_proj": 2}, {}, {}, "except experts"),
    "another rank": ({Q: 3}, {}, {}, "says LoRA of rank 2"),
    "half of a pair": ({}, {"model.layers.0.mlp.up_proj.lora_A.weight": torch.ones(2, IN)}, {}, "up_proj' has lora_A"),
    "a convolution": ({}, {f"{Q}.lora_A.weight": torch.ones(2, IN, 1, 1)}, {}, "lora_A torch.float32 [2, 6, 1, 1]"),
    "float64": ({}, DOUBLE, {}, "lora_A torch.float64"),
    "magnitudes without DoRA": ({}, {f"{Q}.lora_magnitude_vector": torch.ones(OUT)}, {}, "says LoRA"),
    "DoRA without magnitudes": ({}, {}, {"use_dora": True}, "says DoRA"),
    "wrong magnitudes": ({Q: 2}, {f"{Q}.lora_magnitude_vector": torch.ones(9)}, {"use_dora": True}, "_vector torch"),
    "bias": ({}, {}, {"bias": "lora_only"}, "sets 'bias' to 'lora_only'"),
    "modules_to_save": ({}, {}, {"modules_to_save": ["lm_head"]}, "sets 'modules_to_save' to ['lm_head']"),
    "target_parameters": ({}, {}, {"target_parameters": ["experts.w"]}, "sets 'target_parameters'"),
    "a later method": ({}, {}, {"use_turbo": True}, "sets 'use_turbo' to True"),
    "PiSSA": ({}, {}, {"init_lora_weights": "pissa_niter_4"}, "which also changed the original weights"),
    "prompt tuning": ({}, {}, {"peft_type": "PROMPT_TUNING"}, "of the type 'PROMPT_TUNING'"),
    "no peft_type": ({}, {}, {"peft_type": None}, "Expected `str`, got `null` - at `$.peft_type`."),
    "rank zero": ({}, {}, {"r": 0}, "`$.r`"),
    "alpha zero": ({}, {}, {"lora_alpha": 0}, "`$.lora_alpha`"),
    "alpha NaN": ({}, {}, {"lora_alpha": float("nan")}, "`$.lora_alpha`"),
    "dropout of all": ({}, {}, {"lora_dropout": 1.0}, "`$.lora_dropout`"),
    "no pattern": ({}, {}, {"rank_pattern": {"(": 2}}, "no regular expression"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_adapter_is_refused_in_one_line(adapter, tmp_path, case):
    ranks, more, config, says = REFUSED[case]
    folder, _ = adapter(ranks, more, **config)
    assert says in refusal(export_to_mlx, folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("key", ["peft_type", "r", "lora_alpha"])
def test_missing_key_is_named(adapter, tmp_path, key):
    folder, _ = adapter()
    config = {name: value for name, value in CONFIG.items() if name != key}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    assert f"Object missing required field `{key}`" in refusal(export_to_mlx, folder, tmp_path / "out")


@pytest.mark.parametrize("content", ["", "[1]", "null", "{", "[" * 100_000, "\x00", '{"peft_type": "LORA"', "7"])
def test_file_that_is_no_configuration_is_refused(adapter, tmp_path, content):
    folder, _ = adapter()
    (folder / "adapter_config.json").write_text(content)
    assert "is not the configuration of a PEFT adapter" in refusal(export_to_mlx, folder, tmp_path / "out")


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_truncated_weights_are_refused(adapter, tmp_path, keep):
    folder, _ = adapter()
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert "adapter_model.safetensors is damaged" in refusal(export_to_mlx, folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_missing_files_are_named(adapter, tmp_path):
    folder, _ = adapter()
    out = tmp_path / "out"
    assert "There is no folder" in refusal(export_to_mlx, tmp_path / "gone", out)
    assert "There is no folder ''" in refusal(export_to_mlx, "", out)
    assert "There is no folder" in refusal(export_to_mlx, folder / "adapter_config.json", out)
    save_file({}, folder / "adapter_model.safetensors")
    assert "has no tensors" in refusal(export_to_mlx, folder, out)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    assert "adapter_model.bin is a pickle" in refusal(export_to_mlx, folder, out)
    (folder / "adapter_model.bin").unlink()
    assert "but no adapter_model.safetensors" in refusal(export_to_mlx, folder, out)
    (folder / "adapter_config.json").unlink()
    assert "there is no PEFT adapter in it" in refusal(export_to_mlx, folder, out)


def test_only_a_new_or_empty_folder_is_written(adapter, tmp_path):
    folder, _ = adapter()
    before = sorted(folder.iterdir())
    assert "is not empty, and nothing was exported" in refusal(export_to_mlx, folder, folder)
    assert sorted(folder.iterdir()) == before
    (tmp_path / "file").write_text("mine")
    assert "is not a folder" in refusal(export_to_mlx, folder, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "link").symlink_to("nowhere")
    assert "is not a folder" in refusal(export_to_mlx, folder, tmp_path / "link")
    assert "cannot be written to" in refusal(export_to_mlx, folder, tmp_path / "file" / "out")
    assert "cannot be written to" in refusal(export_to_mlx, folder, "a\0b")
    assert "an empty name" in refusal(export_to_mlx, folder, "")
    (tmp_path / "empty").mkdir()
    export_to_mlx(folder, tmp_path / "empty")
    assert len(list((tmp_path / "empty").iterdir())) == 2


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_full_disk_leaves_nothing(adapter, tmp_path, monkeypatch, error, is_new):
    folder, _ = adapter()
    out = tmp_path / "out"
    if not is_new:
        out.mkdir()

    def fails_at_the_configuration(path, mode):
        if Path(path).name == "adapter_config.json":
            raise error
        return open(path, mode)

    monkeypatch.setattr("mps_trainer.export.open", fails_at_the_configuration, raising=False)
    if isinstance(error, OSError):
        assert "No space left on device" in refusal(export_to_mlx, folder, out)
    else:
        with pytest.raises(KeyboardInterrupt):
            export_to_mlx(folder, out)
    assert out.exists() != is_new
    shutil.rmtree(out, ignore_errors=True)
    monkeypatch.undo()
    export_to_mlx(folder, out)
