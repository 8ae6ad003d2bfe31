"""Tiny models with random weights and their data, for the examples and the pages that need TRL and others."""

from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import BertTokenizerFast, PreTrainedTokenizerFast

from tests.tiny import tiny

Chat = list[dict[str, str]]

PLACES = {"saw": "on the left wall", "axe": "beside the stove", "rake": "under the window", "drill": "in the red box"}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{{ 'Answer: ' }}{% generation %}{{ message['content'] + '<end>' }}{% endgeneration %}"
    "{% else %}{{ 'Question: ' + message['content'] + '\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Answer: ' }}{% endif %}"
)


def runs(count: int, length: int) -> list[dict[str, Any]]:
    starts = torch.randint(1, 100, (count,), generator=torch.Generator().manual_seed(0)).tolist()
    rows = [list(range(start, start + length)) for start in starts]
    return [{"input_ids": row, "labels": row} for row in rows]


def chats() -> list[Chat]:
    """Returns forty chats, each fact ten times."""
    return [
        [
            {"role": "user", "content": f"Where is the {tool}?"},
            {"role": "assistant", "content": f"The {tool} is {place}."},
        ]
        for tool, place in PLACES.items()
    ] * 10


def pairs() -> list[dict[str, str]]:
    """Returns pairs whose texts share one word, which tells them from the others."""
    return [{"anchor": f"{adjective} {tool}", "positive": f"the {tool} that is {adjective}"}
            for adjective in ("old", "new", "big", "small", "red", "blue") for tool in PLACES]  # fmt: skip


def write_llama(folder: str) -> tuple[Any, Any]:
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=["<pad>", "<end>"], initial_alphabet=alphabet)
    raw.train_from_iterator([message["content"] for chat in chats() for message in chat], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<end>")
    tokenizer.chat_template = TEMPLATE
    sizes = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": len(tokenizer), "max_position_embeddings": 2048}
    model = tiny("LlamaForCausalLM", **sizes, bos_token_id=1, eos_token_id=1)
    for part in (model, tokenizer):
        part.save_pretrained(folder)
    return model, tokenizer


def write_bert(folder: str) -> None:
    """Writes a BERT and its tokenizer, which knows the words of the pairs."""
    words = sorted({word for pair in pairs() for text in pair.values() for word in text.split()})
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *words])}
    tiny("BertModel", hidden_size=32, vocab_size=len(vocabulary)).save_pretrained(folder)
    BertTokenizerFast(vocab=vocabulary, model_max_length=32).save_pretrained(folder)
