"""`mps-trainer export` writes an adapter for mlx-lm, or refuses in one line."""

import json
import shlex

import torch
from safetensors.torch import save_file

from mps_trainer import cli

MODULE = "model.layers.0.self_attn.q_proj"


def write_adapter(folder, **config):
    folder.mkdir()
    parts = {"lora_A": torch.ones(2, 6), "lora_B": torch.ones(4, 2)}
    save_file(
        {f"base_model.model.{MODULE}.{name}.weight": tensor for name, tensor in parts.items()},
        folder / "adapter_model.safetensors",
    )
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings))


def test_command_writes_the_files_and_shows_how_to_use_them(tmp_path, capsys):
    write_adapter(tmp_path / "adapter")
    out = tmp_path / "for mlx"
    assert cli.main(["export", str(tmp_path / "adapter"), "--to", "mlx", str(out)]) == 0
    assert {path.name for path in out.iterdir()} == {"adapter_config.json", "adapters.safetensors"}
    said, error = capsys.readouterr()
    assert error == ""
    first, _, command = said.splitlines()
    assert first.startswith(f"Wrote LoRA of rank 2 for 1 layer to {out}.")
    words = shlex.split(command)
    assert words[:3] == ["mlx_lm.generate", "--model", "MODEL"]
    assert words[words.index("--adapter-path") + 1] == str(out)


def test_adapter_that_mlx_lm_cannot_represent_is_refused_with_status_2(tmp_path, capsys):
    write_adapter(tmp_path / "adapter", modules_to_save=["lm_head"])
    assert cli.main(["export", str(tmp_path / "adapter"), "--to", "mlx", str(tmp_path / "out")]) == 2
    said, error = capsys.readouterr()
    assert said == ""
    assert error.startswith("mps-trainer: error: ")
    assert error.count("\n") == 1
    assert "sets 'modules_to_save' to ['lm_head']" in error
    assert not (tmp_path / "out").exists()
