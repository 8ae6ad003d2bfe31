"""The two small models that benchmarks train, and the examples for them, both drawn from a seed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from .peers.task import Task

VOCABULARY = 1000
LENGTHS = (16, 64)  # tokens of the shortest and of the longest example


class OneLayer(nn.Module):
    """So small that what a step takes is what the loop around it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.linear(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def one_layer(steps: int, **settings: Any) -> tuple[nn.Module, Task]:
    """A linear layer, and points that it can tell apart; the library's own collation."""
    torch.manual_seed(0)
    points = torch.randn(8 * steps, 16)
    examples = [{"x": point, "labels": label} for point, label in zip(points, (points.sum(1) > 0).long(), strict=True)]
    return OneLayer(), Task(examples, batch_size=8, **settings)


def small_bert(steps: int, **settings: Any) -> tuple[nn.Module, Task]:
    """A BERT of two layers with random weights, and sentences of varying length that are padded batch by batch."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
    )
    model = BertForSequenceClassification(config)
    examples = [_sentence(int(length)) for length in torch.randint(*LENGTHS, (8 * steps,))]
    return model, Task(examples, batch_size=8, learning_rate=1e-4, collate=pad, **settings)


def small_llama(steps: int, *, lora: bool = False) -> tuple[nn.Module, list[dict[str, Any]]]:
    """A Llama of two layers with random weights, or with LoRA on all its linear layers, and texts, 4 a step."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    model: Any = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=2, **sizes))
    if lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear"))
    texts = torch.randint(0, VOCABULARY, (4 * steps, 32))
    return model, [{"input_ids": text, "labels": text} for text in texts]


def _sentence(length: int) -> dict[str, Any]:
    tokens = torch.randint(1, VOCABULARY, (length,))
    return {"input_ids": tokens, "labels": int(tokens[0] < VOCABULARY // 2)}


def pad(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """A batch with what a tokenizer gives BERT, as long as its longest example."""
    tokens = pad_sequence([example["input_ids"] for example in examples], batch_first=True)
    return {
        "input_ids": tokens,
        "token_type_ids": torch.zeros_like(tokens),
        "attention_mask": (tokens != 0).long(),
        "labels": torch.tensor([example["labels"] for example in examples]),
    }


@torch.no_grad()
def loss_after(model: nn.Module, task: Task) -> float:
    """The mean loss of the first 256 examples, on the CPU: the same for two models that learned the same."""
    model.to("cpu").eval()
    collate = task.collate or torch.utils.data.default_collate
    examples = task.examples[:256]
    batches = [examples[start : start + 64] for start in range(0, len(examples), 64)]
    losses = [model(**collate(batch))["loss"].item() * len(batch) for batch in batches]
    return sum(losses) / len(examples)
