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
from .unpadded_mpnet import mpnet_changes

# Models of transformers that have a stack of layers, which gets hidden states and a mask, and the attribute that holds
# the stack. ModernBERT calls its layers itself.
ENCODERS = {
    "BertModel": "encoder",
    "RobertaModel": "encoder",
    "XLMRobertaModel": "encoder",
    "CamembertModel": "encoder",
    "ErnieModel": "encoder",
    "ElectraModel": "encoder",
    "DistilBertModel": "transformer",
    "MPNetModel": "encoder",
    "ModernBertModel": "",
}
_LAYER_OUTPUTS = ("output_hidden_states", "output_attentions")  # these would show the row


class UnpaddedEncoder(NamedTuple):
    """An encoder whose layers can compute without padding.

    Args:
        model: the model of transformers.
        stack: its stack of layers; the model itself if that calls its layers.
    """

    model: Any
    stack: nn.Module

    @property
    def window(self) -> int | None:
        """Returns the distance at which tokens still see each other in some layers; None if no layer has a limit."""
        calls_layers = self.stack is self.model
        window: int | None = self.model.config.sliding_window if calls_layers else None
        return window


def encoders_in(model: nn.Module) -> list[UnpaddedEncoder]:
    """Returns the encoders in `model` whose layers can compute without padding."""
    encoders = []
    for module in model.modules():
        kind = type(module)
        if kind.__name__ not in ENCODERS or not kind.__module__.startswith("transformers.models."):
            continue
        config: Any = module.config
        if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
            continue
        encoders.append(UnpaddedEncoder(module, module.get_submodule(ENCODERS[kind.__name__])))
    return encoders


@contextlib.contextmanager
def encoders_unpadded(encoders: list[UnpaddedEncoder], called_by: nn.Module | None = None) -> Iterator[None]:
    """Inside, `encoders` compute a batch without padding if its mask has a layout.

    Args:
        called_by: a model. If it is given, they do so only while its forward() runs, and not for other code
            that calls an encoder itself and may read the padding.
    """
    changes: list[tuple[Any, str, Any]] = []
    is_running = [called_by is None]
    if called_by is not None:
        forward = MethodType(_marking_run(called_by.forward, is_running), called_by)
        changes.append((called_by, "forward", forward))
    for model, stack in encoders:
        if stack is model:
            in_row = _model_in_one_row(model.forward, is_running)
            changes.append((model, "forward", MethodType(in_row, model)))
            continue
        layouts: list[TextLayout] = []  # of the calls of the model that are under way
        of_model = _handing_on_layout(model.forward, layouts, is_running)
        of_stack = _in_one_row(stack.forward, layouts)
        changes += [(model, "forward", MethodType(of_model, model)), (stack, "forward", MethodType(of_stack, stack))]
        if type(model).__name__ == "MPNetModel":
            changes += mpnet_changes(stack, layouts)
    with attributes_replaced(changes):
        yield


def is_replaced(forward: Any) -> bool:
    """Returns True for a forward() that this module has put in place of a model's own."""
    return getattr(getattr(forward, "__func__", forward), "_mt_unpads", False)


def _marking_run(plain: Callable, is_running: list[bool]) -> Callable:
    """Returns a forward() of a model that notes while it is under way."""

    @functools.wraps(getattr(plain, "__func__", plain))
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = is_running[0]
        is_running[0] = True
        try:
            return plain(*args, **kwargs)
        finally:
            is_running[0] = before

    forward._mt_unpads = True  # type: ignore[attr-defined]
    return forward


def _handing_on_layout(plain: Callable, layouts: list[TextLayout], is_running: list[bool]) -> Callable:
    """Returns a forward() of a model that tells its stack of layers the layout of the batch.

    The model makes no mask then: the stack gets that of the row.
    """

    @functools.wraps(getattr(plain, "__func__", plain))  # its signature is read
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
        layout = layout_of(mask)
        if layout is None or _shows_layers(self, kwargs) or not is_running[0]:
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


def _shows_layers(model: Any, kwargs: dict[str, Any]) -> bool:
    """Returns True if a call of a model returns hidden states or attention weights of its layers."""
    return any(kwargs.get(name) or getattr(model.config, name, False) for name in _LAYER_OUTPUTS)


def _model_in_one_row(plain: Callable, is_running: list[bool]) -> Callable:
    """Returns a forward() of a model with rotary embeddings that computes tokens in one row, from the embeddings on.

    The tokens keep the positions of the padded batch, and the model gets a mask for each kind of its layers.
    """

    @functools.wraps(getattr(plain, "__func__", plain))
    def forward(
        self: Any,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        inputs_embeds: Any = None,
        **kwargs: Any,
    ) -> Any:
        named = {"input_ids": input_ids, "position_ids": position_ids, "inputs_embeds": inputs_embeds}
        layout = layout_of(attention_mask)
        if layout is None or _shows_layers(self, kwargs) or not is_running[0]:
            return plain(attention_mask=attention_mask, **named, **kwargs)
        if position_ids is None:
            named["position_ids"] = (layout.padded_indices % layout.length)[None]
        else:
            named["position_ids"] = layout.to_row(position_ids.expand(layout.batch, -1))
        for name in ("input_ids", "inputs_embeds"):
            named[name] = None if named[name] is None else layout.to_row(named[name])
        device = layout.padded_indices.device
        masks = {
            "full_attention": mask_of_row(layout, device),
            "sliding_attention": mask_of_row(layout, device, self.config.sliding_window),
        }
        outputs = plain(attention_mask=masks, **named, **kwargs)
        return _with_hidden(outputs, layout.to_padded(outputs[0]))

    forward._mt_unpads = True  # type: ignore[attr-defined]
    return forward


def _with_hidden(outputs: Any, hidden: torch.Tensor) -> Any:
    """Returns outputs of a model, a tuple or transformers' class, with other hidden states of the last layer."""
    if isinstance(outputs, tuple):
        return (hidden, *outputs[1:])
    outputs.last_hidden_state = hidden
    return outputs


def _in_one_row(plain: Callable, layouts: list[TextLayout]) -> Callable:
    """Returns a forward() of a stack of layers that computes them in one row."""

    @functools.wraps(getattr(plain, "__func__", plain))
    def forward(self: Any, hidden_states: torch.Tensor, attention_mask: Any = None, **kwargs: Any) -> Any:
        layout = layouts[-1] if layouts else None
        if layout is None:
            return plain(hidden_states, attention_mask, **kwargs)
        row = layout.to_row(hidden_states)
        outputs = plain(row, mask_of_row(layout, row.device), **kwargs)
        hidden = outputs[0]
        is_first_only = hidden.shape[1] != layout.num_tokens  # of a classifier that reads no other token
        return _with_hidden(outputs, hidden.transpose(0, 1) if is_first_only else layout.to_padded(hidden))

    forward._mt_unpads = True  # type: ignore[attr-defined]
    return forward


def mask_of_row(layout: TextLayout, device: torch.device, window: int | None = None) -> ChunkedMask:
    """Returns the mask of an encoder in which each text of a row sees its own tokens.

    Args:
        window: the distance up to which a token is seen. Default: any distance.
    """
    length = layout.num_tokens
    in_text = masking_utils.bidirectional_mask_function
    if window is not None:
        in_text = masking_utils.sliding_window_bidirectional_mask_function(window)

    def visible(batch: Any, head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        queries, keys = layout.padded_indices[query], layout.padded_indices[key]
        is_same_text = (queries // layout.length) == (keys // layout.length)
        sees = is_same_text & layout.seen.flatten()[keys]
        return sees if window is None else sees & in_text(batch, head, queries, keys)

    def make(**kwargs: Any) -> torch.Tensor:
        index = torch.arange(length, device=device)
        return visible(None, None, index[:, None], index)[None, None]

    texts = PackedTexts((layout.starts,), length)
    reach = Reach(window, window, is_plain=False)  # tokens of a text are not farther apart in the row
    return ChunkedMask(
        visible, reach, 1, length, length, device, make=make, texts=texts, layout=layout, in_text=in_text
    )
