"""Tiny models of transformers, with the same random weights each time."""

from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = [f"w{i}" for i in range(40)]
SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", "<s>", "</s>"]
SIZES = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
OWN = {
    "T5Config": {"num_decoder_layers": 1, "d_kv": 8, "d_ff": 24, "dropout_rate": 0.0, "decoder_start_token_id": 0},
    "BartConfig": {
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 24,
        "decoder_layers": 1,
        "decoder_attention_heads": 2,
        "eos_token_id": 2,
    },
}


def tiny(kind: Any, **settings: Any) -> Any:
    """Returns a model of a class, or of transformers' class of this name, with these settings of its configuration."""
    kind = getattr(transformers, kind) if isinstance(kind, str) else kind
    torch.manual_seed(0)
    return kind(kind.config_class(**{**SIZES, **OWN.get(kind.config_class.__name__, {}), **settings}))


def tokenizer_of_words() -> Any:
    """Returns a tokenizer that knows WORDS."""
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate([*SPECIAL, *WORDS])}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = ("pad", "cls", "sep", "unk", "mask", "bos", "eos")
    special = {f"{name}_token": word for name, word in zip(names, SPECIAL, strict=True)}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=64, **special)


def with_lora(model: Any, mixed: bool = False, **settings: Any) -> Any:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    return peft.get_peft_model(model, peft.LoraConfig(**{"task_type": "CAUSAL_LM", "r": 2, **settings}), mixed=mixed)
