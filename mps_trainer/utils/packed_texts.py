"""Knows where the texts of packed rows begin, from their positions on the host, so that the device need not be asked.

Rows are packed if `position_ids` count each text from its own beginning, as those of TRL's packing and those of
transformers' `DataCollatorWithFlattening` do.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

_NAME = "_mt_packed_texts"  # an attribute of a tensor of positions: the texts, and the tensor's version then


@dataclass(frozen=True)
class PackedTexts:
    """The texts of a batch of packed rows.

    Args:
        starts: the first token of each text, for each row, in order; each row begins with 0.
        length: tokens of a row.
    """

    starts: tuple[tuple[int, ...], ...]
    length: int

    @property
    def is_packed(self) -> bool:
        """Returns True if a row has several texts."""
        return any(len(row) > 1 for row in self.starts)

    def bounds(self, start: int, end: int) -> tuple[int, int]:
        """Returns the range of the texts, in any row, that have the tokens from `start` to `end`."""
        first, last = start, end
        for row in self.starts:
            first = min(first, row[bisect.bisect_right(row, start) - 1])
            following = bisect.bisect_left(row, end)
            last = max(last, row[following] if following < len(row) else self.length)
        return first, last

    def blocks(self, most: int) -> list[slice]:
        """Returns slices of at most `most` tokens that cover a row, which begin with texts where there is one row.

        A block that begins within a text would see that text's earlier tokens too.
        """
        if len(self.starts) > 1:
            return [slice(start, min(start + most, self.length)) for start in range(0, self.length, most)]
        found: list[slice] = []
        begin, ends = 0, (*self.starts[0][1:], self.length)
        for number, end in enumerate(ends):
            following = ends[number + 1] if number + 1 < len(ends) else None
            while end - begin > most:
                found.append(slice(begin, begin + most))
                begin += most
            if following is None or following - begin > most:
                found.append(slice(begin, end))
                begin = end
        return found


def find_texts(position_ids: Any) -> PackedTexts | None:
    """Returns the texts of rows with these positions; None unless they are numbers of rows x tokens on the host."""
    if not isinstance(position_ids, torch.Tensor) or position_ids.device.type != "cpu":
        return None
    if position_ids.ndim != 2 or not position_ids.shape[1] or position_ids.is_floating_point():
        return None
    # transformers, too, takes a step other than 1 for the begin of a text
    begins = (position_ids.diff(dim=-1) != 1).numpy()
    starts = tuple((0, *(int(token) + 1 for token in row.nonzero()[0])) for row in begins)
    return PackedTexts(starts, position_ids.shape[1])


def remember_texts(on_host: Any, moved: Any) -> None:
    """Records the texts of a batch on the host with the positions in its copy on the device.

    A model that hands its positions on as they are thereby hands on their texts. Where it makes others of them, nobody
    knows their texts, and attention computes all blocks.
    """
    if not isinstance(on_host, Mapping) or not isinstance(moved, Mapping):
        return
    positions = moved.get("position_ids")
    if isinstance(positions, torch.Tensor) and (texts := find_texts(on_host.get("position_ids"))) is not None:
        setattr(positions, _NAME, (texts, positions._version))


def texts_of(positions: Any) -> PackedTexts | None:
    """Returns the texts recorded with positions; None if there are none, or the positions were changed in place."""
    texts, version = getattr(positions, _NAME, (None, 0))
    return texts if texts is not None and positions._version == version else None


def hand_on_texts(texts: PackedTexts, tensor: torch.Tensor) -> torch.Tensor:
    """Records `texts` with another tensor of rows x tokens, and returns it."""
    setattr(tensor, _NAME, (texts, tensor._version))
    return tensor
