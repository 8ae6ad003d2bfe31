"""Computes the last layer of a classifier for the first token alone.

BERT and its relatives classify a sequence by its first token, so nothing reads the other tokens of the last layer.
They are needed there as keys and values of the attention, but not as queries, in its output or in the feed-forward
layers.

Gain, by `python -m benchmarks.patches`: a training step of MiniLM, with six layers, took 0.87 of the processor time
(0.84 to 0.96 in 7 rounds), measured together with a faster dropout that has been removed.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from transformers.modeling_layers import GradientCheckpointingLayer

from ...utils.attributes import attributes_replaced
from ...utils.caches import has_cache
from ..attention_masks import ChunkedMask
from ..attention_registries import is_of_transformers
from ..introspection import base_model
from .unpadded_encoders import is_replaced as is_unpadded

# Classifiers whose head reads the first token, and the attribute that holds their base model.
CLASSIFIERS = {
    "BertForSequenceClassification": "bert",
    "RobertaForSequenceClassification": "roberta",
    "XLMRobertaForSequenceClassification": "roberta",
    "CamembertForSequenceClassification": "roberta",
    "ElectraForSequenceClassification": "electra",
    "ErnieForSequenceClassification": "ernie",
}
_ATTENTION = ("sdpa", "eager")  # kinds that take one query for many keys, with masks of batch x 1 x queries x keys
# Modules of these compute each token by itself: adapters of PEFT, linear layers of bitsandbytes, and those of torch.
_OF_TORCH = ("activation", "container", "dropout", "linear", "normalization")
_BY_TOKEN = ("transformers.", "peft.", "bitsandbytes.", *(f"torch.nn.modules.{name}" for name in _OF_TORCH))
# Newer releases of transformers checkpoint in the forward of a layer, which is replaced here, older ones around it.
_CHECKPOINTS_IN_FORWARD = "__call__" not in vars(GradientCheckpointingLayer)
# The hooks of all modules. torch asks for them in one function only in its latest releases.
_GLOBAL_HOOKS = [
    hooks for name, hooks in vars(torch_module).items() if name.startswith(("_global_backward_", "_global_forward_"))
]
_FIRST_ONLY = "_mt_first_token_only"  # an argument that the models hand on to their layers, also to recompute them


def unread_tokens_skipped(model: nn.Module, is_on: bool) -> contextlib.AbstractContextManager[None]:
    """Makes a classifier in `model` skip the tokens of its last layer that nothing reads, if `is_on`.

    The classifier still computes them where other code could read them: if hidden states or attentions are requested,
    if a module on the way has a hook, and if the base model is called by itself.
    """
    classifier = base_model(model)
    layer = last_layer(classifier) if is_on else None
    if layer is None or _is_replaced(layer):
        return contextlib.nullcontext()
    own = MethodType(_asking_for_first_token(classifier.forward), classifier)
    return attributes_replaced([(layer, "forward", MethodType(forward, layer)), (classifier, "forward", own)])


def last_layer(classifier: Any) -> nn.Module | None:
    """Returns the last layer of a classifier whose other tokens can be skipped; None for any other model."""
    kind = type(classifier)
    if kind.__name__ not in CLASSIFIERS or not kind.__module__.startswith("transformers.models."):
        return None
    base, config = getattr(classifier, CLASSIFIERS[kind.__name__]), classifier.config
    if not base.encoder.layer or config.is_decoder or config.add_cross_attention:
        return None
    layer: nn.Module = base.encoder.layer[-1]
    pooler = getattr(base, "pooler", None)
    reader = classifier.classifier if pooler is None else pooler  # without a pooler, the head gets all tokens
    reader = getattr(reader, "original_module", reader)  # in PEFT's wrapper of modules that are trained as a whole
    reads_first = type(reader).__module__ == kind.__module__
    by_token = all(map(_is_by_token, layer.modules()))
    kinds: list[Any] = [type(layer), type(config)]
    return layer if reads_first and by_token and _is_known(*kinds) else None


def _is_by_token(module: nn.Module) -> bool:
    """Returns True if a module and its forward() are from a package that computes each token by itself."""
    kind: Any = type(module)
    home = getattr(kind.forward, "__globals__", {}).get("__name__", "")  # a user may have replaced the method
    return kind.__module__.startswith(_BY_TOKEN) and home.startswith((*_BY_TOKEN, "torch.nn."))


@functools.cache
def _is_known(kind: Any, config_kind: Any) -> bool:
    """Returns True for a class of layers that computes as `_first_token` does. A small layer is compared."""
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 1}
    try:
        with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
            torch.manual_seed(0)
            config = config_kind(**sizes)
            config._attn_implementation = "sdpa"
            layer = kind(config).eval()
            hidden = torch.randn(2, 3, 8)
            mask = torch.tensor([[True, True, True], [True, True, False]])[:, None, None].expand(2, 1, 3, 3)
            with torch.autocast("cpu", enabled=False):
                expected, given = layer(hidden, mask), _first_token(layer, hidden, mask)
    except Exception:  # it needs other attributes: not a layer like BERT's
        return False
    return isinstance(expected, torch.Tensor) and torch.allclose(given, expected[:, :1], atol=1e-5)


def _asking_for_first_token(plain: Any) -> Any:
    """Returns a `forward` of the classifier that asks the last layer for the first token if nothing reads others."""
    of_class = getattr(plain, "__func__", None)

    @functools.wraps(of_class or plain)  # its signature is read
    def classify(self: Any, *args: Any, **kwargs: Any) -> Any:
        base = getattr(self, CLASSIFIERS[type(self).__name__])
        layer = base.encoder.layer[-1]
        heads = [each for each in self.children() if each is not base]
        poolers = [each for each in base.children() if each is not base.encoder and each is not base.embeddings]
        readers = (module for each in (*heads, *poolers, layer) for module in each.modules())
        is_watched = any(_GLOBAL_HOOKS) or any(map(_is_watched, (base, base.encoder, *readers)))
        knows_attention = self.config._attn_implementation in _ATTENTION and is_of_transformers(_attention_of(layer))
        if _is_replaced(layer) and not is_watched and knows_attention:
            kwargs[_FIRST_ONLY] = True
        return plain(*args, **kwargs) if of_class is None else of_class(self, *args, **kwargs)

    return classify


def _attention_of(layer: Any) -> Any:
    """Returns the function that computes a layer's attention, which users may have replaced."""
    attention = layer.attention.self
    home: Any = sys.modules[type(attention).__module__]
    kind = attention.config._attn_implementation
    return home.ALL_ATTENTION_FUNCTIONS.get_interface(kind, home.eager_attention_forward)


def _is_replaced(module: nn.Module) -> bool:
    return getattr(vars(module).get("forward"), "__func__", None) is forward


def _is_watched(module: nn.Module) -> bool:
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    own = vars(module).get("forward")
    return any(hooks) or (own is not None and not _is_replaced(module) and not is_unpadded(own))


def forward(self: Any, hidden_states: torch.Tensor, attention_mask: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Computes the forward pass of the last layer."""
    is_row = isinstance(attention_mask, ChunkedMask) and attention_mask.layout is not None
    is_tensor = isinstance(attention_mask, torch.Tensor) and attention_mask.dim() == 4
    is_known_mask = attention_mask is None or is_tensor or is_row
    if kwargs.pop(_FIRST_ONLY, False) and is_known_mask and not has_cache(kwargs):
        compute: Any = functools.partial(_first_token, self, **kwargs)
        if self.gradient_checkpointing and self.training and _CHECKPOINTS_IN_FORWARD:
            compute = functools.partial(self._gradient_checkpointing_func, compute)
        return compute(hidden_states, attention_mask, *args)
    return type(self).forward(self, hidden_states, attention_mask, *args, **kwargs)


def _first_token(
    layer: Any,
    hidden: torch.Tensor,
    attention_mask: Any = None,
    encoder_hidden_states: Any = None,
    encoder_attention_mask: Any = None,
    cache: Any = None,
    past_key_values: Any = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Returns what a layer of BERT computes for the first token of each text, batch x 1 x width.

    Args:
        hidden: of all tokens, batch x length x width, or a row without padding, of 1 x tokens x width. The result is
            then of 1 x batch x width.
        attention_mask: batch x 1 x queries x keys, or that of the row; None if all tokens see each other.
    """
    layout = attention_mask.layout if isinstance(attention_mask, ChunkedMask) else None
    first = hidden[:, :1] if layout is None else hidden.index_select(1, layout.first_tokens)
    attention = layer.attention.self
    queries, keys, values = attention.query(first), attention.key(hidden), attention.value(hidden)
    if layout is not None:
        queries, keys, values = queries.transpose(0, 1), *map(layout.to_padded_unmasked, (keys, values))
    query, key, value = (
        each.unflatten(-1, (-1, attention.attention_head_size)).transpose(1, 2) for each in (queries, keys, values)
    )
    attend = _attention_of(layer)
    if layout is not None:
        mask = attention_mask.for_padded(layer.attention.self.config._attn_implementation == "eager", query.dtype)
    else:
        mask = None if attention_mask is None else attention_mask[:, :, :1]
    dropout = attention.dropout.p if attention.training else 0.0
    attended, _ = attend(attention, query, key, value, mask, dropout=dropout, scaling=attention.scaling, **kwargs)
    attended = attended.flatten(2)
    attended = attended if layout is None else attended.transpose(0, 1)
    result: torch.Tensor = layer.feed_forward_chunk(layer.attention.output(attended, first))
    return result
