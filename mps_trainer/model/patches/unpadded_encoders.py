"""Computes the layers of an encoder in one row of tokens without padding, and attention alone in the padded form.

Heads and poolings get the padded tensor, with 0 in place of what the layers would compute of padding. Where the
padding is, `data/unpadding.py` has recorded with the attention mask.

Gain, by `python -m benchmarks padding`: MiniLM on MRPC takes 0.75 of the processor time in batches of 32, of which a
third is padding.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import masking_utils

from ...utils.attributes import attributes_replaced
from ...utils.packed_texts import PackedTexts
from ...utils.text_layout import TextLayout, layout_of
from ..attention_masks import ChunkedMask, Reach

# Models of transformers whose stack of layers gets hidden states and a mask, and the attribute that holds the stack.
ENCODERS = {
    "BertModel": "encoder",
    "RobertaModel": "encoder",
    "XLMRobertaModel": "encoder",
    "CamembertModel": "encoder",
    "ErnieModel": "encoder",
    "ElectraModel": "encoder",
    "DistilBertModel": "transformer",
}
_ASKED = ("output_hidden_states", "output_attentions")  # these would show the row


class UnpaddedEncoder(NamedTuple):
    """An encoder whose layers can compute without padding: the model of transformers, and its stack of layers."""

    model: Any
    stack: nn.Module


def encoders_in(model: nn.Module) -> list[UnpaddedEncoder]:
    """Returns the encoders in `model` whose layers can compute without padding."""
    found = []
    for module in model.modules():
        kind = type(module)
        if kind.__name__ not in ENCODERS or not kind.__module__.startswith("transformers.models."):
            continue
        config: Any = module.config
        if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
            continue
        found.append(UnpaddedEncoder(module, getattr(module, ENCODERS[kind.__name__])))
    return found


@contextlib.contextmanager
def encoders_unpadded(encoders: list[UnpaddedEncoder], called_by: nn.Module | None = None) -> Iterator[None]:
    """Inside, `encoders` compute a batch without padding if its mask has a layout.

    Args:
        called_by: a model. If it is given, they do so only while its forward() is under way, and not for other code
            that calls an encoder itself and may read the padding.
    """
    changes: list[tuple[Any, str, Any]] = []
    under_way = [called_by is None]
    if called_by is not None:
        forward = MethodType(_noting(called_by.forward, under_way), called_by)
        changes.append((called_by, "forward", forward))
    for model, stack in encoders:
        layouts: list[TextLayout] = []  # of the calls of the model that are under way
        of_model = _handing_on_layout(model.forward, layouts, under_way)
        of_stack = _in_one_row(stack.forward, layouts)
        changes += [(model, "forward", MethodType(of_model, model)), (stack, "forward", MethodType(of_stack, stack))]
    with attributes_replaced(changes):
        yield


def is_replaced(forward: Any) -> bool:
    """Returns True for a forward() that this module has put in place of a model's own."""
    return getattr(getattr(forward, "__func__", forward), "_mt_unpads", False)


def _noting(plain: Callable, under_way: list[bool]) -> Callable:
    """Returns a forward() of a model that notes while it is under way."""

    @functools.wraps(getattr(plain, "__func__", plain))
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = under_way[0]
        under_way[0] = True
        try:
            return plain(*args, **kwargs)
        finally:
            under_way[0] = before

    forward._mt_unpads = True  # type: ignore[attr-defined]
    return forward


def _handing_on_layout(plain: Callable, layouts: list[TextLayout], under_way: list[bool]) -> Callable:
    """Returns a forward() of a model that tells its stack of layers the layout of the batch.

    The model makes no mask then: the stack gets that of the row.
    """

    @functools.wraps(getattr(plain, "__func__", plain))  # its signature is read
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
        layout = layout_of(mask)
        asked = any(kwargs.get(name) or getattr(self.config, name, False) for name in _ASKED)
        if layout is None or asked or not under_way[0]:
            return plain(*args, **kwargs)
        layouts.append(layout)
        if len(args) > 1:
            args = (args[0], None, *args[2:])
        else:
            kwargs["attention_mask"] = None
        try:
            return plain(*args, **kwargs)
        finally:
            layouts.pop()

    forward._mt_unpads = True  # type: ignore[attr-defined]
    return forward


def _in_one_row(plain: Callable, layouts: list[TextLayout]) -> Callable:
    """Returns a forward() of a stack of layers that computes them in one row."""

    @functools.wraps(getattr(plain, "__func__", plain))
    def forward(self: Any, hidden_states: torch.Tensor, attention_mask: Any = None, **kwargs: Any) -> Any:
        layout = layouts[-1] if layouts else None
        if layout is None:
            return plain(hidden_states, attention_mask, **kwargs)
        row = layout.to_row(hidden_states)
        outputs = plain(row, mask_of_row(layout, row.device), **kwargs)
        hidden = outputs.last_hidden_state
        is_first_only = hidden.shape[1] != layout.num_tokens  # of a classifier that reads no other token
        outputs.last_hidden_state = hidden.transpose(0, 1) if is_first_only else layout.to_padded(hidden)
        return outputs

    forward._mt_unpads = True  # type: ignore[attr-defined]
    return forward


def mask_of_row(layout: TextLayout, device: torch.device) -> ChunkedMask:
    """Returns the mask of an encoder in which each text of a row sees its own tokens."""
    length = layout.num_tokens

    def visible(batch: Any, head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        places, seen = layout.places, layout.seen.flatten()
        is_same_text = (places[query] // layout.length) == (places[key] // layout.length)
        return is_same_text & seen[places[key]]

    def make(**kwargs: Any) -> torch.Tensor:
        index = torch.arange(length, device=device)
        return visible(None, None, index[:, None], index)[None, None]

    texts, in_text = PackedTexts((layout.starts,), length), masking_utils.bidirectional_mask_function
    unknown = Reach(is_plain=False)
    return ChunkedMask(
        visible, unknown, 1, length, length, device, make=make, texts=texts, layout=layout, in_text=in_text
    )
