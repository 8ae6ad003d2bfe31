"""Pads batches to the length of their bucket."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch
from transformers import BatchEncoding, DataCollatorWithPadding, PreTrainedTokenizerBase
from transformers.utils import to_py_obj

from .buckets import LengthBuckets

IGNORED_LABEL = -100  # torch's cross_entropy leaves it out
_MASK = "attention_mask"


class PadToBucket:
    """Pads each batch to the length of the bucket of its longest example.

    For a tokenizer, or a `DataCollatorWithPadding` as transformers makes it, the batch is the one that
    `tokenizer.pad(..., padding="max_length", max_length=bucket)` gives, with `label` and `label_ids` under the name
    `labels`, made without that slow function. In the batch of any other collator every tensor that is as long as
    `input_ids` is made longer, on the side on which the tokenizer pads. A batch without an `attention_mask` stays as
    it is: the model could not tell padding from tokens.

    Args:
        collator: a tokenizer, or a collator.
        buckets: the lengths.
        tokenizer: says how to pad what a collator that has none gives; default: zeros on the right.
    """

    def __init__(self, collator: Callable | PreTrainedTokenizerBase, buckets: LengthBuckets, tokenizer: Any = None):
        if isinstance(collator, PreTrainedTokenizerBase):
            collator = DataCollatorWithPadding(collator)
        self.collator: Any = collator
        self.buckets = buckets
        own = getattr(collator, "tokenizer", None) or getattr(collator, "processing_class", None)
        self.tokenizer = tokenizer if own is None else own

    def __call__(self, examples: list[Any]) -> Any:
        if not self._pads_plainly():
            return self._extended(self.collator(examples))
        name = self.tokenizer.model_input_names[0]
        if name not in examples[0]:
            return self.collator(examples)  # says what it misses
        multiple = self.collator.pad_to_multiple_of or 1
        length = self.buckets.length_for(max(len(example[name]) for example in examples))
        length = -(-length // multiple) * multiple
        batch = padded_directly(self.tokenizer, examples, length)
        if batch is None:
            plain = DataCollatorWithPadding(self.tokenizer, padding="max_length", max_length=length)
            return plain(examples)
        for old in ("label", "label_ids"):
            if old in batch:
                batch["labels"] = batch.pop(old)
        return batch

    def _pads_plainly(self) -> bool:
        """Returns True if the collator only pads to the longest example."""
        collator = self.collator
        return (
            type(collator) is DataCollatorWithPadding
            and isinstance(collator.tokenizer, PreTrainedTokenizerBase)
            and collator.padding in (True, "longest")
            and collator.return_tensors == "pt"
        )

    def _extended(self, batch: Any) -> Any:
        """Returns `batch`, which has tensors by name, in the length of its bucket."""
        inputs = (getattr(self.tokenizer, "model_input_names", None) or ["input_ids"])[0]
        if not isinstance(batch, Mapping):
            return batch
        for name in (inputs, _MASK):
            if not isinstance(value := batch.get(name), torch.Tensor) or value.ndim != 2:
                return batch  # choices of several texts, masks of pairs of tokens
        size, length = batch[inputs].shape
        missing = self.buckets.length_for(length) - length
        left = getattr(self.tokenizer, "padding_side", "right") == "left"
        padded = {}
        for name, value in batch.items():
            if missing and isinstance(value, torch.Tensor) and value.shape[:2] == (size, length):
                if name == "labels" and value.is_floating_point():
                    continue  # one for each class, not for each token
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
        return {"labels": IGNORED_LABEL, "special_tokens_mask": 1}.get(name, 0)


def padded_directly(tokenizer: Any, examples: list[Any], length: int) -> BatchEncoding | None:
    """Returns the batch of `tokenizer.pad` for `length`; None if it would not just put lists of ids side by side."""
    kind = type(tokenizer)
    if kind.pad is not PreTrainedTokenizerBase.pad or kind._pad is not PreTrainedTokenizerBase._pad:
        return None
    inputs = tokenizer.model_input_names[0]
    columns = {name: [example[name] for example in examples] for name in examples[0]}
    if _MASK in tokenizer.model_input_names and _MASK not in columns:
        columns[_MASK] = [[1] * len(row) for row in columns[inputs]]
    padding = {inputs: tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id, "special_tokens_mask": 1}
    if _MASK in tokenizer.model_input_names:
        padding[_MASK] = 0
    lengths = [len(row) for row in columns[inputs]]
    if padding[inputs] is None or not min(lengths):
        return None
    places = np.arange(length) if tokenizer.padding_side == "right" else np.arange(length)[::-1]
    real = places < np.asarray(lengths)[:, None]  # True where a token is
    padded: dict[str, Any] = {}
    for name, rows in columns.items():
        if name not in padding:
            padded[name] = rows
            continue
        flat = _joined(rows, lengths)
        if flat is None:
            return None
        values = np.full(real.shape, padding[name], dtype=np.int64)
        values[real] = flat
        padded[name] = torch.from_numpy(values)
    others = {name: rows for name, rows in padded.items() if name not in padding}
    if isinstance(columns[inputs][0], (torch.Tensor, np.ndarray)):
        others = {name: to_py_obj(rows) for name, rows in others.items()}  # as tokenizer.pad does, for the types' sake
    return BatchEncoding({**padded, **BatchEncoding(others, tensor_type="pt")})


def _joined(rows: list[Any], lengths: list[int]) -> np.ndarray | None:
    """Returns all numbers of `rows`, as long as `lengths` says, in one array; None for rows of another kind."""
    if [len(row) for row in rows] != lengths:
        return None
    if isinstance(rows[0], list):
        flat = np.array(list(chain.from_iterable(rows)))
        return flat if flat.dtype == np.int64 else None
    arrays = [np.asarray(row) for row in rows]
    if any(array.ndim != 1 or not np.issubdtype(array.dtype, np.integer) for array in arrays):
        return None
    return np.concatenate(arrays)
