"""Provides paraphrase pairs and a tiny BERT for runs without the hub."""

from __future__ import annotations

import random
from typing import Any

# Words of a line mean the same. Only the words between them are in both sentences of a pair.
WHO = """\
child kid youngster
teacher tutor instructor
doctor physician medic
sailor seaman mariner
farmer grower planter
thief robber burglar
friend pal companion
singer vocalist crooner
judge referee umpire
boss manager supervisor"""
DOES = """\
buys purchases acquires
repairs mends fixes
hides conceals buries
throws hurls tosses
finds discovers locates
draws sketches depicts
breaks smashes shatters
cleans washes scrubs"""
HOW = """\
old ancient antique
big large huge
small little tiny
lovely pretty beautiful
wet damp soaked
odd strange peculiar"""
WHAT = """\
boat ship vessel
house home dwelling
stone rock pebble
picture image photograph
sofa couch settee
coat jacket parka
bag sack pouch
car automobile vehicle
cup mug beaker
path trail track"""
SENTENCES = ("the {0} {1} the {2} {3}", "it is the {2} {3} that the {0} {1}")
SLOTS = tuple([line.split() for line in words.splitlines()] for words in (WHO, DOES, HOW, WHAT))
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}


def pairs(train: int = 1200, held: int = 200, seed: int = 0) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Returns training pairs and held-out pairs with other facts in the same words."""
    draw = random.Random(seed)
    facts = [(a, b, c, d) for a in SLOTS[0] for b in SLOTS[1] for c in SLOTS[2] for d in SLOTS[3]]
    made = [_pair(fact, draw) for fact in draw.sample(facts, train + held)]
    return made[:train], made[train:]


def _pair(fact: Any, draw: random.Random) -> dict[str, str]:
    words = [draw.sample(meaning, 2) for meaning in fact]
    first, second = draw.sample(SENTENCES, 2)
    return {"anchor": first.format(*(w[0] for w in words)), "positive": second.format(*(w[1] for w in words))}


def write_tiny_bert(folder: str) -> None:
    """Writes configuration, random weights and vocabulary of a BERT, as SentenceTransformer reads them."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    between = {word for sentence in SENTENCES for word in sentence.split() if word.isalpha()}
    words = sorted(between | {word for slot in SLOTS for meaning in slot for word in meaning})
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *words])}
    config = BertConfig(**SIZES, vocab_size=len(vocabulary), max_position_embeddings=32, pad_token_id=0)
    BertModel(config).save_pretrained(folder)
    BertTokenizerFast(vocab=vocabulary, model_max_length=32).save_pretrained(folder)
