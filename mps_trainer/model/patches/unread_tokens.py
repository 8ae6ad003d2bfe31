"""Computes the last layer of a classifier for the first token alone.

BERT and its relatives classify a sequence by its first token, so nothing reads the other tokens of the last layer.
They are needed there as keys and values of the attention, but not as queries, in its output or in the feed-forward
layers.

Gain, by `python -m benchmarks.patches`: a training step of MiniLM, with six layers, takes 0.87 of the processor time
(0.84 to 0.96 in 7 rounds).
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_modules

from ..introspection import base_model, is_transformed

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
_FIRST_ONLY = "_mt_first_token_only"

_global_hooks = (
    torch_modules._global_forward_hooks,
    torch_modules._global_forward_pre_hooks,
    torch_modules._global_backward_hooks,
    torch_modules._global_backward_pre_hooks,
)
_in_classifier: ContextVar[bool] = ContextVar("_in_classifier", default=False)


@contextlib.contextmanager
def unread_tokens_skipped(model: nn.Module, is_on: bool) -> Iterator[None]:
    """Makes a classifier in `model` skip the tokens of its last layer that nothing reads, if `is_on`.

    The classifier still computes them where other code could read them: if hidden states or attentions are requested,
    if a module on the way has a hook, and if the base model is called by itself.
    """
    classifier = base_model(model)
    layer = last_layer(classifier) if is_on else None
    if layer is None:
        yield
        return
    kind: Any = type(layer)
    before = vars(classifier).get("forward")  # the class's own is not among them
    forward = _telling_layer(classifier.forward, _readers(classifier))
    classifier.forward = forward
    layer.__class__ = _short(kind)
    try:
        yield
    finally:
        layer.__class__ = kind
        if vars(classifier).get("forward") is forward:  # a wrapper that others put around it stays
            del classifier.forward
            if before is not None:
                classifier.forward = before


def last_layer(classifier: Any) -> nn.Module | None:
    """Returns the last layer of a classifier whose other tokens can be skipped; None for any other model."""
    kind = type(classifier)
    if kind.__name__ not in CLASSIFIERS or not kind.__module__.startswith("transformers.models."):
        return None
    encoder = getattr(getattr(classifier, CLASSIFIERS[kind.__name__], None), "encoder", None)
    layers = getattr(encoder, "layer", None)
    config = classifier.config
    if not layers or config.is_decoder or config.add_cross_attention:
        return None
    layer: nn.Module = layers[-1]
    kinds: list[Any] = [type(layer), type(config)]
    return layer if _is_known(*kinds) and _reads_first_token(classifier) and _keeps_tokens_apart(layer) else None


def _reads_first_token(classifier: Any) -> bool:
    """Returns True if the head and the pooler are transformers' own, as far as they get more than the first token."""
    home = type(classifier).__module__
    pooler = getattr(getattr(classifier, CLASSIFIERS[type(classifier).__name__]), "pooler", None)
    # without a pooler, the head gets all tokens
    reader = classifier.classifier if pooler is None else pooler
    reader = getattr(reader, "original_module", reader)  # in PEFT's wrapper of modules that are trained as a whole
    return type(reader).__module__ == home and type(reader).__name__.endswith(("ClassificationHead", "Pooler"))


def _keeps_tokens_apart(layer: nn.Module) -> bool:
    """Returns True if all parts of a layer are of libraries whose modules compute each token by itself."""
    return all(type(module).__module__.startswith(_BY_TOKEN) for module in layer.modules())


# PEFT's adapters, bitsandbytes' linear layers, and dropout of this package, beside transformers' and torch's.
_OF_TORCH = ("activation", "container", "dropout", "linear", "normalization")
_LIBRARIES = ("transformers.", "peft.", "bitsandbytes.", "mps_trainer.")
_BY_TOKEN = (*_LIBRARIES, *(f"torch.nn.modules.{name}" for name in _OF_TORCH))


@functools.cache
def _is_known(kind: Any, config_kind: Any) -> bool:
    """Returns True for a class of layers that computes as `_first_token` does. A small layer is compared."""
    if not kind.__module__.startswith("transformers.models."):
        return False
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
    except Exception:  # it wants what is not there, so it is another
        return False
    return isinstance(expected, torch.Tensor) and torch.allclose(given, expected[:, :1], atol=1e-5)


def _readers(classifier: Any) -> list[nn.Module]:
    """Returns the modules that get all that the last layer computes: those on its way to the head, and the head."""
    base = getattr(classifier, CLASSIFIERS[type(classifier).__name__])
    heads = [each for each in classifier.children() if each is not base]
    poolers = [each for each in base.children() if each is not base.encoder and each is not base.embeddings]
    return [base, base.encoder, *(module for each in heads + poolers for module in each.modules())]


def _telling_layer(forward: Any, readers: list[nn.Module]) -> Any:
    """Returns a `forward` of the classifier during which its last layer knows that only the head reads its result."""
    plain = getattr(forward, "__func__", forward)

    @functools.wraps(plain)
    def in_classifier(*args: Any, **kwargs: Any) -> Any:
        if any(map(_is_watched, readers)):
            return plain(*args, **kwargs)
        token = _in_classifier.set(True)
        try:
            return plain(*args, **kwargs)
        finally:
            _in_classifier.reset(token)

    return MethodType(in_classifier, forward.__self__) if hasattr(forward, "__func__") else in_classifier


@functools.cache
def _short(kind: Any) -> type:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _in_classifier.get() and _is_unread(self, args, kwargs):
            kwargs[_FIRST_ONLY] = True  # so that activation checkpointing knows it in the backward pass
        return kind.__call__(self, *args, **kwargs)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.pop(_FIRST_ONLY, False):
            return _first_token(self, *args, **kwargs)
        return kind.forward(self, *args, **kwargs)

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        """Makes copies, and what is saved of a model during a run, layers as they were."""
        return copyreg._reconstructor, (kind, object, None), self.__dict__  # type: ignore[attr-defined]

    return type(kind.__name__, (kind,), {"__call__": call, "forward": forward, "__reduce_ex__": __reduce_ex__})


def _is_unread(layer: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Returns True if nothing but the classifier's head can read what this call of the layer computes."""
    config = layer.attention.self.config
    given = [*args[2:], *(kwargs.get(name) for name in ("encoder_hidden_states", "past_key_values"))]
    mask = args[1] if len(args) > 1 else kwargs.get("attention_mask")
    return (
        bool(args)
        and all(each is None for each in given)
        and (mask is None or (isinstance(mask, torch.Tensor) and mask.dim() == 4))
        and config._attn_implementation in _ATTENTION
        and not is_transformed()
        and not any(map(_is_watched, layer.modules()))
    )


def _is_watched(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in vars(module)
        or any(_global_hooks)
    )


def _first_token(
    layer: Any, hidden: torch.Tensor, attention_mask: torch.Tensor | None = None, *_: Any, **kwargs: Any
) -> torch.Tensor:
    """Returns what a layer of BERT computes for the first token, batch x 1 x width.

    Args:
        hidden: of all tokens, batch x length x width.
        attention_mask: batch x 1 x queries x keys; None if all tokens see each other.
    """
    first = hidden[:, :1]
    attention = layer.attention.self
    query, key, value = (
        project(tokens).unflatten(-1, (-1, attention.attention_head_size)).transpose(1, 2)
        for project, tokens in ((attention.query, first), (attention.key, hidden), (attention.value, hidden))
    )
    home: Any = sys.modules[type(attention).__module__]
    attend = home.ALL_ATTENTION_FUNCTIONS.get_interface(
        attention.config._attn_implementation, home.eager_attention_forward
    )
    attended, _weights = attend(
        attention,
        query,
        key,
        value,
        None if attention_mask is None else attention_mask[:, :, :1],
        dropout=attention.dropout.p if attention.training else 0.0,
        scaling=attention.scaling,
        **{name: given for name, given in kwargs.items() if name not in _OF_LAYER},
    )
    attended = layer.attention.output(attended.flatten(2), first)
    result: torch.Tensor = layer.feed_forward_chunk(attended)
    return result


_OF_LAYER = ("encoder_hidden_states", "encoder_attention_mask", "past_key_values")
