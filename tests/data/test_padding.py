"""Batches in the length of their bucket: bit for bit those of the tokenizer, or another collator's made longer."""

import copy
import types
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, DataCollatorForTokenClassification, DataCollatorWithPadding

from mps_trainer.data.buckets import LengthBuckets
from mps_trainer.data.padding import PadToBucket
from tests.conftest import refusal

EMBEDDED = Path(__file__).parents[2] / "examples" / "text-classification" / "embedded"
BUCKETS = LengthBuckets((8, 13, 24))
LENGTHS = [3, 12, 7, 9]  # to be padded to 13


@pytest.fixture
def tokenizer():
    return AutoTokenizer.from_pretrained(EMBEDDED)


def rows(lengths=LENGTHS, **more):
    names = {"input_ids": 5, "token_type_ids": 1, "attention_mask": 1, "special_tokens_mask": 0}
    return [
        {
            **{name: list(range(at, at + n)) if name == "input_ids" else [at] * n for name, at in names.items()},
            **{name: value(i) for name, value in more.items()},
        }
        for i, n in enumerate(lengths)
    ]


def assert_same(batch, expected):
    assert type(batch) is type(expected)
    assert list(batch) == list(expected)
    for name, tensor in expected.items():
        assert batch[name].dtype == tensor.dtype, name
        assert torch.equal(batch[name], tensor), name


KINDS = {
    "all": rows(),
    "more columns": rows(label=lambda i: i, weight=lambda i: i / 2, pair=lambda i: [i, 1]),
    "tensors": [{name: torch.tensor(value) for name, value in row.items()} for row in rows(label=lambda i: i / 2)],
    "longest": rows([24, 1]),
    "beyond the last bucket": rows([25, 1]),
}


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("examples", KINDS.values(), ids=KINDS.keys())
def test_batch_is_the_tokenizers_own_bit_for_bit(tokenizer, examples, side):
    tokenizer.padding_side = side
    tokenizer._pad_token_type_id = 3
    longest = max(len(example["input_ids"]) for example in examples)
    plain = DataCollatorWithPadding(tokenizer, padding="max_length", max_length=BUCKETS.length_for(longest))
    expected = plain(copy.deepcopy(examples))
    assert expected["input_ids"].shape[1] in (8, 13, 24, 32)
    for collator in (tokenizer, DataCollatorWithPadding(tokenizer)):
        assert_same(PadToBucket(collator, BUCKETS)(examples), expected)


@pytest.mark.parametrize(
    ("settings", "length"), [({"pad_to_multiple_of": 16}, 16), ({"padding": "max_length", "max_length": 24}, 24)]
)
def test_what_the_collator_pads_to_is_kept(tokenizer, settings, length):
    collator = DataCollatorWithPadding(tokenizer, **settings)
    assert PadToBucket(collator, BUCKETS)(rows())["input_ids"].shape == (4, length)
    assert "input_ids" in refusal(PadToBucket(tokenizer, BUCKETS), [{"x": 1}], kind=ValueError)


@pytest.mark.parametrize("side", ["right", "left"])
def test_batch_of_another_collator_is_made_longer_on_the_side_of_the_tokenizer(tokenizer, side):
    tokenizer.padding_side = side
    examples = [{**row, "labels": row["input_ids"]} for row in rows()]
    for row in examples:
        del row["special_tokens_mask"]
    expected = DataCollatorForTokenClassification(tokenizer, padding="max_length", max_length=13)(
        copy.deepcopy(examples)
    )
    batch = PadToBucket(DataCollatorForTokenClassification(tokenizer), BUCKETS)(examples)
    assert_same(batch, expected)
    assert batch["labels"].shape == (4, 13)
    assert (batch["labels"] == -100).sum() == 4 * 13 - sum(LENGTHS)


def stacked(batch):
    return lambda examples: {name: tensor.clone() for name, tensor in batch.items()}


TENSORS = {
    "input_ids": torch.ones(2, 5, dtype=torch.long),
    "attention_mask": torch.ones(2, 5, dtype=torch.long),
    "special_tokens_mask": torch.zeros(2, 5, dtype=torch.long),
    "labels": torch.ones(2, 5),
    "boxes": torch.ones(2, 5, 4),
    "decoder_input_ids": torch.ones(2, 3, dtype=torch.long),
}


def test_what_is_not_as_long_as_the_tokens_stays(tokenizer):
    plain = PadToBucket(stacked(TENSORS), BUCKETS)([])
    assert plain["input_ids"].tolist() == [[1] * 5 + [0] * 3] * 2  # without a tokenizer zeros, on the right
    batch = PadToBucket(stacked(TENSORS), BUCKETS, tokenizer)([])
    shapes = {name: tuple(tensor.shape) for name, tensor in batch.items()}
    assert shapes == {
        **dict.fromkeys(["input_ids", "attention_mask", "special_tokens_mask"], (2, 8)),
        "labels": (2, 5),  # numbers with a fraction: one for each class
        "boxes": (2, 8, 4),
        "decoder_input_ids": (2, 3),
    }
    assert batch["special_tokens_mask"][:, 5:].all()
    assert not batch["boxes"][:, 5:].any()
    assert (batch["input_ids"][:, 5:] == tokenizer.pad_token_id).all()


@pytest.mark.parametrize("name", ["labels", "ner_labels", "shift_labels", "tags"])
def test_labels_of_padding_are_ignored_under_each_name_of_labels(tokenizer, name):
    batch = stacked({**TENSORS, name: TENSORS["input_ids"]})
    assert PadToBucket(batch, BUCKETS, tokenizer, ["tags"])([])[name].tolist() == [[1] * 5 + [-100] * 3] * 2


IDS = torch.ones(2, 9, dtype=torch.long)


@pytest.mark.parametrize(
    "batch",
    [
        {"input_ids": IDS},
        {"attention_mask": IDS},
        # several texts for each example
        {"input_ids": IDS.expand(2, 2, 9), "attention_mask": IDS.expand(2, 2, 9)},
        # a mask of pairs of tokens
        {"input_ids": IDS, "attention_mask": torch.ones(2, 1, 9, 9)},
    ],
)
def test_batch_whose_padding_could_not_be_told_stays(tokenizer, batch):
    assert_same(PadToBucket(stacked(batch), LengthBuckets((16,)), tokenizer)([]), batch)
    assert PadToBucket(list, BUCKETS)([1, 2]) == [1, 2]


def test_a_batch_that_cannot_be_written_to_is_padded_as_well(tokenizer):
    collate = DataCollatorWithPadding(tokenizer)
    expected = PadToBucket(collate, BUCKETS)(rows())
    padded = PadToBucket(lambda items: types.MappingProxyType(dict(collate(items))), BUCKETS, tokenizer)(rows())
    assert padded["input_ids"].shape == expected["input_ids"].shape
