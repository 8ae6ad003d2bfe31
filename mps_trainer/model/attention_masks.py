"""Attention masks that are made for one block of queries and keys at a time, never of tokens x tokens."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import CellType, FunctionType
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map_only
from transformers import masking_utils

from ..utils import blocks
from ..utils.packed_texts import PackedTexts, texts_of
from ..utils.text_layout import TextLayout, layout_of
from .attention_registries import is_of_transformers

_MOST_KEPT = 2**16  # elements of the edge of a plain mask, which is the same for all blocks


class Reach(NamedTuple):
    """Tells how far a query sees: `ahead` keys after its own position and `behind` before it; None: to the end.

    `is_plain` is True if it sees all keys in this range, and so does every other query of the batch in its own.
    """

    ahead: int | None = None
    behind: int | None = None
    is_plain: bool = True


def reach_of(mask_function: Callable) -> Reach:
    """Returns the reach of a mask function of transformers, as far as its parts are known.

    Unknown parts are not plain and hide nothing for certain, which costs time alone: their blocks are computed.
    """
    unknown = Reach(is_plain=False)
    if getattr(mask_function, "__module__", "") != masking_utils.__name__:
        return unknown
    if mask_function is masking_utils.causal_mask_function:
        return Reach(ahead=0)
    if mask_function is masking_utils.bidirectional_mask_function:
        return Reach()
    made_by, values = mask_function.__qualname__.partition(".")[0], inspect.getclosurevars(mask_function).nonlocals
    if made_by == "sliding_window_overlay":
        return Reach(behind=values["sliding_window"] - 1)
    if made_by == "sliding_window_bidirectional_overlay":
        return Reach(values["sliding_window"], values["sliding_window"])
    if made_by == "chunked_overlay":
        return Reach(values["chunk_size"] - 1, values["chunk_size"] - 1, is_plain=False)
    if made_by == "remap_positions_for_packed_sequence":  # positions within a text follow each other, as its tokens do
        return reach_of(values["mask_function"])._replace(is_plain=False)
    if made_by == "and_masks":
        parts = [reach_of(each) for each in values["mask_functions"]]
        ahead = min((part.ahead for part in parts if part.ahead is not None), default=None)
        behind = min((part.behind for part in parts if part.behind is not None), default=None)
        return Reach(ahead, behind, all(part.is_plain for part in parts))
    return unknown


def texts_in(mask_function: Callable) -> PackedTexts | None:
    """Returns the texts of packed rows that a mask function of transformers hides from one another, if known."""
    return next((texts for each in _tensors_of(mask_function) if (texts := texts_of(each)) is not None), None)


def layout_in(mask_function: Callable) -> TextLayout | None:
    """Returns the layout of a padded batch whose texts are in one row, from a mask function of transformers."""
    found = (layout_of(each) for each in _tensors_of(mask_function))
    return next((layout for layout in found if layout is not None), None)


def _tensors_of(mask_function: Callable) -> Iterator[torch.Tensor]:
    """Yields the tensors that a mask function and the functions inside it read."""
    for cell in getattr(mask_function, "__closure__", None) or ():
        value = cell.cell_contents
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, torch.Tensor):
                yield each
            elif callable(each):
                yield from _tensors_of(each)


def visible_in_text(mask_function: Callable) -> Callable | None:
    """Returns what a mask function of packed rows shows of a query's own text, by positions that begin with the text.

    It is None for a mask with parts that transformers' masks of packed rows do not have.
    """
    parts = _parts_of(mask_function)
    inner = [_inner_of(part) for part in parts if part.__qualname__.startswith("remap_positions_for_packed_sequence.")]
    others = [part for part in parts if not part.__qualname__.startswith("remap_positions_for_packed_sequence.")]
    only_texts = all(part.__qualname__.startswith("packed_sequence_mask_function.") for part in others)
    return inner[0] if len(inner) == 1 and only_texts else None


def _parts_of(mask_function: Callable) -> list[Callable]:
    """Returns the functions that a mask function of transformers requires together."""
    if not is_of_transformers(mask_function) or not mask_function.__qualname__.startswith("and_masks."):
        return [mask_function]
    functions = inspect.getclosurevars(mask_function).nonlocals["mask_functions"]
    return [part for each in functions for part in _parts_of(each)]


def _inner_of(remapped: Callable) -> Callable:
    inner: Callable = inspect.getclosurevars(remapped).nonlocals["mask_function"]
    return inner


def with_copies(mask_function: Callable) -> Callable | None:
    """Returns a mask function of transformers that reads copies of its tensors; None for a foreign function.

    The backward pass makes the blocks of a mask again, and the batch that holds the tensors may change before.
    """
    if not is_of_transformers(mask_function):
        return None
    cells = []
    for cell in mask_function.__closure__ or ():
        value = cell.cell_contents
        functions = value if isinstance(value, tuple) else (value,)
        if isinstance(value, torch.Tensor):
            value = value.clone()
        elif all(map(callable, functions)):
            copies = tuple(map(with_copies, functions))
            if None in copies:
                return None
            value = copies if isinstance(value, tuple) else copies[0]
        cells.append(CellType(value))
    code, name = mask_function.__code__, mask_function.__name__
    copy = FunctionType(code, mask_function.__globals__, name, mask_function.__defaults__, tuple(cells))
    copy.__qualname__ = mask_function.__qualname__
    return copy if cells else mask_function


@dataclass(eq=False)
class ChunkedMask:
    """A mask that is made for one block at a time. Any other use of it makes the mask of tokens x tokens.

    Args:
        visible: transformers' mask function of batch, head, query and key indices.
        q_offset, kv_offset: the positions of the first query and key.
        make: transformers' function that makes the mask of tokens x tokens, or None if it may be left out.
        texts: those of packed rows, if the mask hides them from one another and the host knows where they begin.
        layout: the layout of a padded batch whose texts are in this row. Attention may then be computed in the form of
            the padded batch, unless `in_text` is None.
        in_text: transformers' mask function of the positions within a text.
    """

    visible: Callable
    reach: Reach
    batch_size: int
    q_length: int
    kv_length: int
    device: torch.device
    q_offset: int = 0
    kv_offset: int = 0
    make: Callable[..., torch.Tensor | None] | None = None
    texts: PackedTexts | None = None
    layout: TextLayout | None = None
    in_text: Callable | None = None
    _kept: dict[Any, torch.Tensor] = field(default_factory=dict)
    _version: int = 0

    @property
    def given(self) -> torch.Tensor | None:
        """Returns the mask for attention without chunks; None if it needs none."""
        return self.whole if "whole" in vars(self) else self._or_none

    @functools.cached_property
    def _or_none(self) -> torch.Tensor | None:
        assert self.make is not None
        return self.make()

    @functools.cached_property
    def whole(self) -> torch.Tensor:
        """Makes and keeps the mask of tokens x tokens."""
        assert self.make is not None
        whole = self.make(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
        assert whole is not None
        self._version = whole._version
        return whole

    def for_padded(self, is_eager: bool, dtype: torch.dtype) -> torch.Tensor | None:
        """Returns the mask for the padded form of the row; None if a causal mask is all that it needs.

        Args:
            is_eager: True for numbers to add in `dtype`, which eager attention takes, instead of True for a visible
                key. Eager attention needs a mask in any case.
        """
        key = "padded", is_eager, dtype if is_eager else None
        if key not in self._kept and (made := self._make_for_padded(is_eager)) is not None:
            if is_eager:
                made = torch.zeros(made.shape, dtype=dtype, device=made.device).masked_fill_(
                    ~made, torch.finfo(dtype).min
                )
            self._kept[key] = made
        return self._kept.get(key)

    def _make_for_padded(self, is_eager: bool) -> torch.Tensor | None:
        layout, visible = self.layout, self.in_text
        assert layout is not None
        if visible is masking_utils.bidirectional_mask_function:
            return layout.seen[:, None, None]  # its shape is batch x 1 x 1 x keys
        # texts begin at the first place, and see no padding, which follows them
        if visible is masking_utils.causal_mask_function and not is_eager:
            return None
        assert visible is not None
        index = torch.arange(layout.length, device=self.device)
        zero = index.new_zeros((1, 1, 1, 1))
        made: torch.Tensor = visible(zero, zero, index[None, None, :, None], index[None, None, None])
        if reach_of(visible).ahead == 0:
            return made
        # a query that the row leaves out sees all keys: none at all could make NaN, also of the gradients of the keys
        left_out = layout.left_out.view(layout.batch, 1, layout.length, 1)
        return made & layout.seen[:, None, None] | left_out

    @property
    def has_changed(self) -> bool:
        """Returns True if the mask of tokens x tokens has been changed in place."""
        return "whole" in vars(self) and self.whole._version != self._version

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.whole, name)

    @classmethod
    def __torch_function__(cls, function: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(cls, lambda mask: mask.whole, (args, kwargs or {}))  # torch.cat takes a list
        return function(*args, **kwargs)

    def keys(self, start: int, end: int) -> tuple[int, int]:
        """Returns the range of keys that the queries from `start` to `end` may see; at least one key."""
        shift = self.q_offset - self.kv_offset
        first = 0 if self.reach.behind is None else min(max(start + shift - self.reach.behind, 0), self.kv_length - 1)
        last = self.kv_length if self.reach.ahead is None else min(end + shift + self.reach.ahead, self.kv_length)
        if self.texts is not None:
            begin, stop = self.texts.bounds(start, end)
            first, last = max(first, begin), min(last, stop)
        return first, max(last, first + 1)

    def queries(self, most: int) -> Iterable[slice]:
        """Returns the slices of queries to compute together, of at most `most` each."""
        return blocks.slices(self.q_length, most) if self.texts is None else self.texts.blocks(most)

    def spans(self) -> tuple[list[slice], bool] | None:
        """Returns the texts that see themselves alone, and True if causally; None if the mask is another.

        A text is a slice of queries. Where the mask hides nothing, the only slice has all queries, which see all keys.
        """
        texts, reach, spans = self.texts, self.reach, [slice(0, self.q_length)]
        if texts is not None and texts.is_packed:
            in_text = visible_in_text(self.visible)
            if in_text is None or len(texts.starts) > 1:
                return None
            ends = (*texts.starts[0][1:], texts.length)
            spans = [slice(*each) for each in zip(texts.starts[0], ends, strict=True)]
            reach = reach_of(in_text)
        furthest = max(each.stop - each.start for each in spans) - 1
        sees_all_before = reach.behind is None or reach.behind >= furthest
        is_square = (self.q_offset, self.q_length) == (self.kv_offset, self.kv_length)
        if not (reach.is_plain and sees_all_before and is_square):
            return None
        if reach.ahead == 0:
            return spans, True
        return (spans, False) if reach.ahead is None or reach.ahead >= furthest else None

    def softmax(self, scores: torch.Tensor, start: int, first: int) -> torch.Tensor:
        """Returns the softmax of the scores of visible keys; 0 for hidden ones. Changes `scores`.

        Args:
            scores: of batch x key heads x queries for each of these x queries x keys, which begin at the query `start`
                and the key `first`.
        """
        end, last, lowest = start + scores.shape[-2], first + scores.shape[-1], torch.finfo(scores.dtype).min
        if self.reach.is_plain and (self.reach.behind is None or self.q_length == self.kv_length):
            for begin, stop in self._edges(start, end, first, last):
                scores[..., begin - first : stop - first].masked_fill_(self._hidden(start, end, begin, stop), lowest)
            return torch.softmax(scores, -1)
        hidden = self._hidden(start, end, first, last)
        weights = torch.softmax(scores.masked_fill_(hidden, lowest), -1)
        return weights.masked_fill_(hidden, 0)  # for a query that sees no key, as torch's own attention does

    def _edges(self, start: int, end: int, first: int, last: int) -> list[tuple[int, int]]:
        """Returns the ranges of keys that some of the queries see, and others do not."""
        shift, edges = self.q_offset - self.kv_offset, []
        if self.reach.ahead is not None:  # the first query sees the fewest
            edges.append((max(first, start + shift + self.reach.ahead + 1), last))
        if self.reach.behind is not None:  # the last query sees the fewest
            edges.append((first, min(last, end - 1 + shift - self.reach.behind)))
        return [(begin, end) for begin, end in edges if begin < end]

    def _hidden(self, start: int, end: int, first: int, last: int) -> torch.Tensor:
        shift = self.q_offset - self.kv_offset
        key = (start + shift - first, end - start, last - first)  # all that a plain mask depends on
        if key in self._kept:
            return self._kept[key]
        index = functools.partial(torch.arange, device=self.device)
        batch = index(self.batch_size)[:, None, None, None]
        head = batch.new_zeros((1, 1, 1, 1))
        queries = index(start + self.q_offset, end + self.q_offset)[:, None]
        keys = index(first + self.kv_offset, last + self.kv_offset)
        hidden = ~self.visible(batch, head, queries[None, None], keys[None, None, None])
        hidden = hidden.reshape(hidden.shape[0], 1, *hidden.shape[1:])  # for the queries that share a key head
        if self.reach.is_plain and (end - start) * (last - first) <= _MOST_KEPT:
            self._kept[key] = hidden
        return hidden


def _of_whole(name: str) -> Callable:
    """Returns an operator of a tensor for `ChunkedMask`, which computes it on the mask of tokens x tokens."""

    def operator(self: ChunkedMask, *others: Any) -> Any:
        return getattr(self.whole, name)(*(each.whole if isinstance(each, ChunkedMask) else each for each in others))

    return operator


for _name in (
    *("lt", "le", "gt", "ge", "eq", "ne", "invert", "neg", "len", "and", "or", "add", "sub", "mul", "truediv"),
    *("rand", "ror", "radd", "rsub", "rmul", "getitem"),
):
    setattr(ChunkedMask, f"__{_name}__", _of_whole(f"__{_name}__"))
ChunkedMask.__hash__ = object.__hash__  # type: ignore[method-assign]


@dataclass
class GivenMask:
    """A mask that the model was given or made itself: True where a key is seen, or numbers to add.

    Args:
        whole: of batch (or 1) x 1 x queries x keys.
    """

    whole: torch.Tensor

    def keys(self, start: int, end: int) -> tuple[int, int]:
        return 0, self.whole.shape[-1]

    def queries(self, most: int) -> Iterable[slice]:
        """See `ChunkedMask.queries`."""
        return blocks.slices(self.whole.shape[-2], most)

    def spans(self) -> None:
        """Returns None: which tokens see which is in a tensor. See `ChunkedMask.spans`."""

    def softmax(self, scores: torch.Tensor, start: int, first: int) -> torch.Tensor:
        """See `ChunkedMask.softmax`."""
        lowest, same = torch.finfo(scores.dtype).min, self.whole.shape[-2] == 1 or self.whole.stride(-2) == 0
        rows = self.whole[..., :1, :] if same else self.whole[..., start : start + scores.shape[-2], :]
        rows = rows[:, :, None]  # for the queries that share a key head
        if rows.dtype is torch.bool:
            hidden = ~rows
            scores.masked_fill_(hidden, lowest)
        else:
            hidden = rows == -torch.inf
            scores.add_(rows.to(scores.dtype).clamp(min=lowest))  # softmax makes NaN of minus infinity alone
        return torch.softmax(scores, -1).masked_fill_(hidden, 0)
