"""The model and the dataset that the pages use: a very small BERT and eight sentences."""

from __future__ import annotations

from typing import Any

import pytest
import torch


@pytest.fixture
def bert():
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return BertForSequenceClassification(BertConfig(vocab_size=32, max_position_embeddings=16, **sizes))


@pytest.fixture
def sentences() -> list[dict[str, Any]]:
    return [{"input_ids": [1, 2, 3 + i % 7, 4], "labels": i % 2} for i in range(8)]
