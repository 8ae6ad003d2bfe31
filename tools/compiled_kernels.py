"""`python -m tools.compiled_kernels`: kernels of small models' steps on mps, with and without torch.compile.

Needs the simulated device and takes about two minutes. What it prints is the table of docs/speed.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mps_trainer.simulator  # noqa: F401 - before torch, so that the device can be simulated with its build for CUDA

# isort: split
import torch
from torch import nn

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
WORDS, EXAMPLES, LENGTH = 1000, 8, 32


def bert() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    from transformers import BertConfig, BertForSequenceClassification

    words = torch.randint(1, WORDS, (EXAMPLES, LENGTH))
    masks = {"attention_mask": torch.ones_like(words), "token_type_ids": torch.zeros_like(words)}
    batch = {"input_ids": words, "labels": torch.zeros(EXAMPLES, dtype=torch.long), **masks}
    return BertForSequenceClassification(BertConfig(vocab_size=WORDS, **SIZES)), batch


def llama() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    words = torch.randint(1, WORDS, (EXAMPLES, LENGTH))
    batch = {"input_ids": words, "labels": words, "attention_mask": torch.ones_like(words)}
    return LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, **SIZES)), batch


def vit() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    from transformers import ViTConfig, ViTForImageClassification

    batch = {"pixel_values": torch.randn(EXAMPLES, 3, 32, 32), "labels": torch.zeros(EXAMPLES, dtype=torch.long)}
    return ViTForImageClassification(ViTConfig(image_size=32, patch_size=8, num_labels=10, **SIZES)), batch


STEPS: dict[str, Callable[[], tuple[nn.Module, dict[str, torch.Tensor]]]] = {"BERT": bert, "Llama": llama, "ViT": vit}


def main() -> None:
    from mps_trainer.simulator import simulated_mps
    from mps_trainer.tools.simulator.compiled import count_kernels

    print(f"torch {torch.__version__}, forward and backward, {EXAMPLES} examples\n")
    print("| step | without torch.compile | with it | generated in Metal | torch's own | graphs | not compiled |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, make in STEPS.items():
        with simulated_mps() as device:
            model, batch = make()
            inputs = {key: value.to("mps") for key, value in batch.items()}

            def loss(model: nn.Module, inputs: dict[str, Any] = inputs) -> torch.Tensor:
                return model(**inputs).loss

            counted = count_kernels(model.to("mps").train(), loss, device)
        cells = [name, counted.eager, counted.total, counted.launches, sum(counted.left.values())]
        cells += [counted.graphs, len(counted.failures)]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
