"""`mps-trainer export`: writes a LoRA adapter in the format of mlx-lm."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from ..utils.text import counted


def add_parser(commands: Any) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "export",
        opening="example: mps-trainer export my-model --to mlx my-adapter",
        help="write a LoRA adapter for mlx-lm",
        description="Write the LoRA or DoRA adapter in the folder ADAPTER, such as a checkpoint, as the files that "
        "mlx-lm loads. OUT must be new or empty. No model is loaded.",
        epilog="The exit status is 0, or 2 when the adapter cannot be read or mlx-lm cannot represent it. Nothing is "
        "written then.",
    )
    command.add_argument("adapter", metavar="ADAPTER", help="a folder with adapter_model.safetensors")
    command.add_argument("out", metavar="OUT", help="the folder to write")
    command.add_argument("--to", metavar="FORMAT", choices=("mlx",), required=True, help="the format: mlx")
    return command


def run(arguments: argparse.Namespace) -> int:
    """Writes the files and prints a command that uses them; returns 0."""
    from ..export import export_to_mlx

    config = export_to_mlx(arguments.adapter, arguments.out)
    kind = {"lora": "LoRA", "dora": "DoRA"}[config["fine_tune_type"]]
    used = config["lora_parameters"]
    layers = counted(len(used["keys"]), "layer")
    print(f"Wrote {kind} of rank {used['rank']} for {layers} to {arguments.out}. To use it with the original MODEL:\n")
    print(f"  mlx_lm.generate --model MODEL --adapter-path {shlex.quote(arguments.out)} --prompt Hello")
    return 0
