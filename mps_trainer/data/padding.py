"""Pads batches to the length of their bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase

from .buckets import LengthBuckets

IGNORED_LABEL = -100  # torch's cross_entropy leaves it out
_MASK = "attention_mask"


class PadToBucket:
    """Pads each batch to the length of the bucket of its longest example.

    A tokenizer, or a `DataCollatorWithPadding` that pads to the longest example, pads to the bucket instead. In the
    batch of any other collator every tensor that is as long as `input_ids` is padded, on the tokenizer's side. A batch
    without an `attention_mask` stays as it is, because the model could not tell padding from tokens.

    Args:
        collator: a tokenizer, or a collator.
        buckets: the lengths.
        tokenizer: defines the padding for a collator that has none; default: zeros on the right.
        label_names: further columns of labels. Those whose names end with "label" or "labels" are known.
    """

    def __init__(
        self,
        collator: Callable | PreTrainedTokenizerBase,
        buckets: LengthBuckets,
        tokenizer: Any = None,
        label_names: Iterable[str] = (),
    ) -> None:
        if isinstance(collator, PreTrainedTokenizerBase):
            collator = DataCollatorWithPadding(collator)
        self.collator: Any = collator
        self.buckets, self.label_names = buckets, tuple(label_names)
        own = getattr(collator, "tokenizer", None) or getattr(collator, "processing_class", None)
        self.tokenizer = tokenizer if own is None else own

    def __call__(self, examples: list[Any]) -> Any:
        collator = self.collator
        pads_to_longest = type(collator) is DataCollatorWithPadding and collator.padding in (True, "longest")
        if not pads_to_longest or not isinstance(collator.tokenizer, PreTrainedTokenizerBase):
            return self._extended(collator(examples))
        name = collator.tokenizer.model_input_names[0]
        if name not in examples[0]:
            return collator(examples)  # its error names what is missing
        length = self.buckets.length_for(max(len(example[name]) for example in examples))
        multiple = collator.pad_to_multiple_of or 1
        return replace(collator, padding="max_length", max_length=-(-length // multiple) * multiple)(examples)

    def _extended(self, batch: Any) -> Any:
        """Returns `batch`, which has tensors by name, padded to its bucket."""
        inputs = (getattr(self.tokenizer, "model_input_names", None) or ["input_ids"])[0]
        if not isinstance(batch, Mapping):
            return batch
        for name in (inputs, _MASK):
            if not isinstance(value := batch.get(name), torch.Tensor) or value.ndim != 2:
                return batch  # several texts for each example, or masks of pairs of tokens
        size, length = batch[inputs].shape
        missing = self.buckets.length_for(length) - length
        left = getattr(self.tokenizer, "padding_side", "right") == "left"
        padded = {}
        for name, value in batch.items():
            if missing and isinstance(value, torch.Tensor) and value.shape[:2] == (size, length):
                if name == "labels" and value.is_floating_point():
                    continue  # there is one for each class, not for each token
                ends = [0, 0] * (value.ndim - 2) + ([missing, 0] if left else [0, missing])
                padded[name] = torch.nn.functional.pad(value, ends, value=self._padding_of(name, inputs))
        if not hasattr(batch, "__setitem__"):
            return {**batch, **padded}
        for name, value in padded.items():
            batch[name] = value
        return batch

    def _padding_of(self, name: str, inputs: str) -> int:
        if name.endswith("input_ids") or name == inputs:  # decoder_input_ids are tokens as well
            return getattr(self.tokenizer, "pad_token_id", None) or 0
        if name == "token_type_ids":
            return getattr(self.tokenizer, "pad_token_type_id", 0)
        if name.endswith(("label", "labels")) or name in self.label_names:  # a head for each kind of label has its own
            return IGNORED_LABEL
        return int(name == "special_tokens_mask")
