"""Maps a padded batch to one row of its tokens without padding, and back.

The indices are made on the host, where nothing has to wait for them, and move to the device together with the batch.
They are attributes of a tensor that the model gets, its mask or its positions, so that whoever has that tensor has
them, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

_NAME = "_mt_text_layout"  # an attribute of a tensor: the layout, and the tensor's version then


@dataclass(frozen=True, eq=False)
class TextLayout:
    """Knows where each token of a padded batch of `batch` x `length` is in the row, and the other way round.

    The row has the texts one after the other. Some padding may follow, as a filler, which is computed and not read.

    Args:
        batch, length: the shape of the padded batch.
        starts: the first token in the row of each text, and that of the filler.
        num_text_tokens: the tokens of the row before the filler.
        padded_indices: for each token of the row its index in the flattened padded batch.
        row_indices: for each token of the flattened padded batch its index in the row; 0 if the row leaves it out.
        left_out: for each token of the flattened padded batch, True if the row leaves it out.
        seen: of `batch` x `length`, True for a token that other tokens of its text may see.
    """

    batch: int
    length: int
    starts: tuple[int, ...]
    num_text_tokens: int
    padded_indices: torch.Tensor
    row_indices: torch.Tensor
    left_out: torch.Tensor
    seen: torch.Tensor

    @property
    def num_tokens(self) -> int:
        """Returns the tokens of the row."""
        return len(self.padded_indices)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Returns the tensors of the layout, which have to be on the device of the tensors that it maps."""
        return [self.padded_indices, self.row_indices, self.left_out, self.seen]

    def with_tensors(self, tensors: list[torch.Tensor]) -> TextLayout:
        """Returns the same layout with `tensors` in the order of the property."""
        padded_indices, row_indices, left_out, seen = tensors
        return dataclasses.replace(
            self, padded_indices=padded_indices, row_indices=row_indices, left_out=left_out, seen=seen
        )

    @property
    def first_tokens(self) -> torch.Tensor:
        """Returns the tokens in the row that are first in each row of the padded batch; the row has all of them."""
        return self.row_indices.view(self.batch, self.length)[:, 0]

    def to_row(self, padded: torch.Tensor) -> torch.Tensor:
        """Returns the tokens of a tensor of batch x length x ... as a row of 1 x tokens x ...."""
        row: torch.Tensor = _ToRow.apply(padded, self)
        return row

    def to_padded(self, row: torch.Tensor) -> torch.Tensor:
        """Returns a row of 1 x tokens x ... as a tensor of batch x length x ..., with 0 for the tokens left out."""
        padded: torch.Tensor = _ToPadded.apply(row, self, True)
        return padded

    def to_padded_unmasked(self, row: torch.Tensor) -> torch.Tensor:
        """Like `to_padded`, with some token of the row instead of those left out.

        It needs one operator less. The gradient of these must be 0.
        """
        padded: torch.Tensor = _ToPadded.apply(row, self, False)
        return padded


def _gather_row(padded: torch.Tensor, layout: TextLayout) -> torch.Tensor:
    return padded.flatten(0, 1).index_select(0, layout.padded_indices).unsqueeze(0)


def _gather_padded(row: torch.Tensor, layout: TextLayout, zeroed: bool) -> torch.Tensor:
    flat = row.squeeze(0).index_select(0, layout.row_indices)
    if zeroed:
        flat.masked_fill_(layout.left_out.view(-1, *[1] * (flat.dim() - 1)), 0)
    return flat.view(layout.batch, layout.length, *flat.shape[1:])


class _ToRow(torch.autograd.Function):
    """Gathers in both directions. The backward pass of torch's own gather adds numbers one by one, which is slow."""

    @staticmethod
    def forward(ctx: Any, padded: torch.Tensor, layout: TextLayout) -> Any:
        ctx.layout = layout
        return _gather_row(padded, layout)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return _ToPadded.apply(grad, ctx.layout, True), None


class _ToPadded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, row: torch.Tensor, layout: TextLayout, zeroed: bool) -> Any:
        ctx.layout = layout
        return _gather_padded(row, layout, zeroed)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return _ToRow.apply(grad, ctx.layout), None, None


def record_layout(tensor: torch.Tensor, layout: TextLayout) -> torch.Tensor:
    """Records the layout of a tensor's batch with the tensor, and returns that."""
    setattr(tensor, _NAME, (layout, tensor._version))
    return tensor


def layout_of(tensor: Any) -> TextLayout | None:
    """Returns the layout recorded with a tensor; None if there is none, or the tensor was changed in place."""
    layout, version = getattr(tensor, _NAME, (None, 0))
    return layout if layout is not None and tensor._version == version else None


def forget_layouts(data: Any) -> None:
    """Removes the layouts recorded with tensors in dictionaries, lists and tuples."""
    for tensor, _ in list(layouts_in(data)):
        delattr(tensor, _NAME)


def layouts_in(data: Any) -> Iterator[tuple[torch.Tensor, TextLayout]]:
    """Yields each tensor in dictionaries, lists and tuples that has a layout, with the layout."""
    if isinstance(data, torch.Tensor):
        if (layout := layout_of(data)) is not None:
            yield data, layout
    elif isinstance(data, (Mapping, list, tuple)):
        for part in data.values() if isinstance(data, Mapping) else data:
            yield from layouts_in(part)
