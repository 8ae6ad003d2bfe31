"""Leaves the padding out of a batch, on the host, before the batch is copied to the device.

A batch of a decoder becomes one row, in which the positions of each text begin with 0. A batch of an encoder keeps its
form, because heads and poolings read it: its mask gets the layout of the row, in which the encoder's layers compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from ..utils.packed_texts import PackedTexts, find_texts, hand_on_texts
from ..utils.text_layout import TextLayout, record_layout
from .padding import IGNORED_LABEL

SIZES = 8  # lengths of rows between a number of tokens and twice as many
_OF_DECODERS = {"input_ids", "attention_mask", "labels"}
_MASK = "attention_mask"
_INPUTS = ("input_ids", _MASK, "token_type_ids")


def row_length(tokens: int) -> int:
    """Returns `tokens` rounded up to one of eight lengths for each doubling, so that a run has few shapes.

    On mps each new shape of an operator costs its preparation. The filler is at most 1/9 of the row, and 1/18 on
    average.
    """
    step = max(1 << (max(tokens, 1).bit_length() - 1), SIZES) // SIZES
    return -(-tokens // step) * step


def layout_of_mask(mask: Any, fills: bool, keeps_first: bool, window: int | None = None) -> TextLayout | None:
    """Returns the layout of the row of a padded batch; None if the row would be as long as the batch.

    Args:
        mask: of batch x length, on the host; other than 0 for a token.
        fills: True to fill the row up to one of few lengths.
        keeps_first: True if the first place of each row of the batch is computed even where it is padding, because a
            classifier reads it.
        window: the distance at which tokens still see each other in some layers. Default: any distance. A batch has no
            layout if the first place of a row then sees no token: what the layers compute of padding would show there.
    """
    if not isinstance(mask, torch.Tensor) or mask.dim() != 2 or mask.device.type != "cpu" or mask.is_floating_point():
        return None
    seen = mask.numpy() != 0
    kept = seen.copy()
    if keeps_first and kept.size:
        kept[:, 0] = True
    count = int(kept.sum())
    if window is not None and kept.size and (seen.argmax(1) > window).any():
        return None
    if not seen.any(1).all() or (row_length(count) if fills else count) >= kept.size:
        return None
    return _layout_of(seen, kept, fills)


def _layout_of(seen: np.ndarray, kept: np.ndarray, fills: bool) -> TextLayout:
    """Returns the layout of a row with the tokens that are `kept`. Both arrays are of batch x length."""
    padded_indices = np.flatnonzero(kept)
    wanted = row_length(len(padded_indices)) if fills else len(padded_indices)
    counts, num_text_tokens = kept.sum(1), len(padded_indices)
    starts = tuple(int(start) for start in np.cumsum(counts) - counts)
    if wanted > num_text_tokens:
        starts = (*starts, num_text_tokens)
        padded_indices = np.concatenate([padded_indices, np.flatnonzero(~kept)[: wanted - len(padded_indices)]])
    row_indices, left_out = np.zeros(kept.size, np.int64), np.ones(kept.size, bool)
    row_indices[padded_indices], left_out[padded_indices] = np.arange(len(padded_indices)), False
    batch, length = kept.shape
    tensors = [torch.from_numpy(each) for each in (padded_indices, row_indices, left_out, seen)]
    return TextLayout(batch, length, starts, num_text_tokens, *tensors)


def in_one_row(batch: Any, fills: bool, masks_filler: bool = False) -> dict[str, torch.Tensor] | None:
    """Returns a batch of a decoder as one row; None if it has to stay as it is.

    It stays if it has no padding, or anything but tokens, mask and labels, if a row has padding between its tokens,
    and if a label of padding enters the loss, or the first label of a left-padded text: the loss of the padded batch
    predicts that label from padding.

    The layout of the row is that of a batch with the padding after each text, wherever it was.

    Args:
        fills: True to fill the row up to one of few lengths.
        masks_filler: True to give a row with a filler an attention mask, which is 0 there.
    """
    if not isinstance(batch, Mapping) or set(batch) != _OF_DECODERS:
        return None
    tokens, mask, labels = batch["input_ids"], batch[_MASK], batch["labels"]
    if not all(_is_like(each, mask) for each in (tokens, labels)):
        return None
    seen, label_array = mask.numpy() != 0, labels.numpy()
    counts, first = seen.sum(1), seen.argmax(1)
    index = np.arange(seen.shape[1])
    if (seen != ((index >= first[:, None]) & (index < (first + counts)[:, None]))).any():
        return None
    first_labels = label_array[np.arange(len(first)), first]
    if (label_array[~seen] != IGNORED_LABEL).any() or (first_labels[first > 0] != IGNORED_LABEL).any():
        return None
    layout = layout_of_mask(torch.from_numpy(index < counts[:, None]), fills, keeps_first=False)
    if layout is None:
        return None
    starts, num_tokens = np.asarray(layout.starts), layout.num_tokens
    filler = np.flatnonzero(~seen)[: num_tokens - layout.num_text_tokens]
    padded_indices = np.concatenate([np.flatnonzero(seen), filler])
    row_labels = label_array.reshape(-1)[padded_indices]
    row_labels[starts] = IGNORED_LABEL
    positions = np.arange(num_tokens) - np.repeat(starts, np.diff(np.append(starts, num_tokens)))
    row = {
        "input_ids": torch.from_numpy(tokens.numpy().reshape(-1)[padded_indices])[None],
        "labels": torch.from_numpy(row_labels)[None],
        "position_ids": torch.from_numpy(positions)[None],
    }
    if masks_filler and num_tokens > layout.num_text_tokens:
        row[_MASK] = torch.from_numpy((np.arange(num_tokens) < layout.num_text_tokens).astype(np.int64))[None]
    record_layout(row["position_ids"], layout)
    hand_on_texts(PackedTexts((layout.starts,), num_tokens), row["position_ids"])
    return row


def has_label_after_left_padding(batch: Any) -> bool:
    """Returns True if the first label of a left-padded text enters the loss of a decoder's batch."""
    if not isinstance(batch, Mapping) or set(batch) != _OF_DECODERS:
        return False
    mask, labels = batch[_MASK], batch["labels"]
    if not _is_like(labels, mask):
        return False
    first = (mask != 0).int().argmax(1)
    return bool(((first > 0) & (labels[torch.arange(len(first)), first] != IGNORED_LABEL)).any())


def layout_of_packed_row(batch: Any) -> TextLayout | None:
    """Returns the layout of the padded form of a row of texts that a collator has packed; None for any other batch."""
    texts = find_texts(batch.get("position_ids")) if isinstance(batch, Mapping) else None
    if texts is None or not texts.is_packed or len(texts.starts) > 1 or batch.get(_MASK) is not None:
        return None
    if not all(_is_like(batch.get(name), batch["position_ids"]) for name in ("input_ids", "labels")):
        return None
    (starts,) = texts.starts
    counts = np.diff(np.append(np.asarray(starts), texts.length))
    mask = torch.from_numpy(np.arange(counts.max()) < counts[:, None])
    return _layout_of(mask.numpy(), mask.numpy(), fills=False)


def to_padded_batch(batch: Mapping[str, Any], layout: TextLayout) -> dict[str, torch.Tensor]:
    """Returns a packed row as a padded batch of a decoder, with a row for each text."""
    tokens, labels = (layout.to_padded(batch[name]) for name in ("input_ids", "labels"))
    return {
        "input_ids": tokens,
        _MASK: layout.seen.long(),
        "labels": labels.masked_fill(layout.left_out.view_as(labels), IGNORED_LABEL),
    }


def _is_like(tensor: Any, mask: Any) -> bool:
    """Returns True for tokens or labels on the host, one for each element of a mask of batch x length."""
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu" or tensor.dtype is not torch.int64:
        return False
    is_mask = isinstance(mask, torch.Tensor) and mask.device.type == "cpu" and mask.dim() == 2
    return is_mask and mask.shape[0] > 0 and mask.shape[1] > 0 and tensor.shape == mask.shape


class Texts(NamedTuple):
    """The texts of a batch that have one attention mask.

    Args:
        inputs: the tensors that a model of transformers takes, by its names.
        labels: the labels of each token, if the batch has them.
    """

    inputs: dict[str, torch.Tensor]
    labels: torch.Tensor | None

    @property
    def mask(self) -> torch.Tensor:
        return self.inputs[_MASK]


def texts_in_batch(batch: Any) -> Iterator[Texts]:
    """Yields the texts of a batch for each of its attention masks.

    It may have several, under names that end with "attention_mask", as the batches of sentence-transformers do, or in
    dictionaries of their own.
    """
    if isinstance(batch, Mapping):
        for name, value in batch.items():
            if isinstance(value, torch.Tensor) and isinstance(name, str) and name.endswith(_MASK):
                prefix, labels = name.removesuffix(_MASK), batch.get("labels")
                inputs = {each: batch.get(prefix + each) for each in _INPUTS}
                is_by_token = isinstance(labels, torch.Tensor) and labels.shape[:2] == value.shape
                yield Texts(
                    {each: tensor for each, tensor in inputs.items() if isinstance(tensor, torch.Tensor)},
                    labels if is_by_token else None,
                )
            else:
                yield from texts_in_batch(value)
    elif isinstance(batch, (list, tuple)):
        for part in batch:
            yield from texts_in_batch(part)


def record_layouts(batch: Any, fills: bool, window: int | None = None) -> list[TextLayout]:
    """Records with the attention masks in a batch of an encoder where the tokens are in a row, and returns that.

    A mask gets none if the batch has no padding to leave out, or if labels of padding enter the loss.

    Args:
        window: see `layout_of_mask`.
    """
    layouts = []
    for texts in texts_in_batch(batch):
        layout = layout_of_mask(texts.mask, fills, keeps_first=True, window=window)
        if layout is None:
            continue
        if texts.labels is not None and bool((texts.labels[~layout.seen] != IGNORED_LABEL).any()):
            continue
        record_layout(texts.mask, layout)
        layouts.append(layout)
    return layouts
