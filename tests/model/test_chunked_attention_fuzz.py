"""Random models, masks, functions of users and changes in place: attention in chunks trains as the model's own.

RANDOM_RUNS=2000 sets the number of cases.
"""

import contextlib
import functools
import os
import random
import sys
from types import MethodType
from unittest import mock

import pytest
import torch
from torch import nn
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from mps_trainer.model import attention_patching
from tests.tiny import tiny

SEEDS = range(20)
CASES = int(os.environ.get("RANDOM_RUNS", "160")) // len(SEEDS)
BATCH, LENGTH, WORDS, STEPS = 2, 11, 32, 2
WINDOW = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"], "head_dim": 4}
GROUPS = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "initializer_range": 0.3}
DECODERS = {
    "LlamaForCausalLM": GROUPS,
    "MistralForCausalLM": {**GROUPS, "sliding_window": 5},
    "Qwen3ForCausalLM": {**GROUPS, "head_dim": 4},
    "Gemma2ForCausalLM": {**GROUPS, **WINDOW},
    "Gemma3ForCausalLM": {**GROUPS, **WINDOW},
    "GptOssForCausalLM": {**GROUPS, **WINDOW, "num_local_experts": 2, "num_experts_per_tok": 1},
    "GPTNeoXForCausalLM": {"hidden_dropout": 0.0, "initializer_range": 0.3},
    "GPT2LMHeadModel": {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "initializer_range": 0.3},
    "OPTForCausalLM": {"dropout": 0.0, "ffn_dim": 24, "word_embed_proj_dim": 16, "init_std": 0.3},
    "CohereForCausalLM": GROUPS,
}
ENCODERS = {
    "BertForMaskedLM": NO_DROPOUT,
    "RobertaForMaskedLM": {**NO_DROPOUT, "pad_token_id": 0},
    "ElectraForMaskedLM": {**NO_DROPOUT, "embedding_size": 16},
    "ModernBertForMaskedLM": {"local_attention": 6, "global_attn_every_n_layers": 2, "initializer_range": 0.3},
}
SEQ2SEQ = {"T5ForConditionalGeneration": {}, "BartForConditionalGeneration": {"dropout": 0.0, "init_std": 0.3}}
EAGER = "Gemma2ForCausalLM", "GptOssForCausalLM"  # they cap their scores and have sinks, which sdpa cannot
KINDS = {**DECODERS, **ENCODERS, **SEQ2SEQ}
DROPOUT = "attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "dropout_rate"


def causal(*shape):
    return torch.ones(*shape, LENGTH, LENGTH, dtype=torch.bool).tril()


def added(seen, dtype=torch.float32, lowest=-1e4):
    return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, lowest)


def padding(rng, left=False):
    seen = torch.ones(BATCH, LENGTH, dtype=torch.long)
    for row in seen:
        count = rng.randrange(4)
        row[: count if left else 0] = 0
        row[LENGTH - (0 if left else count) :] = 0
    return seen


MASKS = {
    "none": lambda rng: None,
    "padding": lambda rng: padding(rng),
    "padding on the left": lambda rng: padding(rng, left=True),
    "bool padding": lambda rng: padding(rng).bool(),
    "no padding": lambda rng: torch.ones(BATCH, LENGTH, dtype=torch.bool),
    "bool": lambda rng: causal(BATCH, 1),
    "bool, one for all": lambda rng: causal(1, 1),
    "expanded": lambda rng: causal(1, 1).expand(BATCH, 1, LENGTH, LENGTH),
    "expanded rows": lambda rng: padding(rng).bool()[:, None, None].expand(BATCH, 1, LENGTH, LENGTH),
    "one row": lambda rng: padding(rng).bool()[:, None, None],
    "one key": lambda rng: added(torch.ones(BATCH, 1, LENGTH, 1, dtype=torch.bool)) + torch.rand(LENGTH, 1),
    "one number": lambda rng: torch.rand(1, 1, 1, 1),
    "transposed": lambda rng: added(causal(BATCH, 1)).transpose(2, 3).contiguous().transpose(2, 3),
    "every other": lambda rng: added(torch.ones(BATCH, 1, LENGTH, 2 * LENGTH, dtype=torch.bool).tril())[..., ::2],
    "float32": lambda rng: added(causal(BATCH, 1)) + torch.rand(BATCH, 1, LENGTH, LENGTH),
    "minus infinity": lambda rng: added(causal(BATCH, 1), lowest=-torch.inf),
    "lowest": lambda rng: added(causal(BATCH, 1), lowest=torch.finfo(torch.float32).min),
    "for each head": lambda rng: added(causal(BATCH, 2)) + torch.rand(BATCH, 2, LENGTH, LENGTH),
    "learned": lambda rng: (added(causal(BATCH, 1)) + torch.rand(LENGTH)).requires_grad_(),
    "learned row": lambda rng: torch.rand(1, 1, 1, LENGTH).requires_grad_(),
    "int64": lambda rng: causal(BATCH, 1).long(),
    "uint8": lambda rng: causal(BATCH, 1).byte(),
    "bfloat16": lambda rng: added(causal(BATCH, 1), torch.bfloat16),
    "float16": lambda rng: added(causal(BATCH, 1), torch.float16),
    "float64": lambda rng: added(causal(BATCH, 1), torch.float64),
    "more rows": lambda rng: torch.ones(BATCH, 1, LENGTH + 3, LENGTH, dtype=torch.bool).tril(),
    "fewer rows": lambda rng: torch.ones(BATCH, 1, LENGTH - 3, LENGTH, dtype=torch.bool).tril(),
    "more keys": lambda rng: torch.ones(BATCH, 1, LENGTH, LENGTH + 3, dtype=torch.bool).tril(),
    "fewer keys": lambda rng: torch.ones(BATCH, 1, LENGTH, LENGTH - 3, dtype=torch.bool).tril(),
    "more texts": lambda rng: causal(BATCH + 1, 1),
    "three heads": lambda rng: causal(BATCH, 3),
}
POSITIONS = {
    "none": lambda rng: None,
    "packed": lambda rng: torch.cat([torch.arange(rng.choice([4, 5])), torch.arange(LENGTH)])[:LENGTH].repeat(
        BATCH, 1
    ),
    "one row": lambda rng: torch.cat([torch.arange(3), torch.arange(LENGTH - 3)])[None],
    "later": lambda rng: torch.arange(5, 5 + LENGTH).repeat(BATCH, 1),
}


def own_function(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    """Caps its scores, which transformers' functions do only on request, and looks at the mask's type."""
    groups = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(groups, 1) for each in (key, value))
    scores = (query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)).tanh()
    if isinstance(attention_mask, torch.Tensor):
        is_bool = attention_mask.dtype is torch.bool
        scores = scores.masked_fill(~attention_mask, -1e4) if is_bool else scores + attention_mask
    elif attention_mask is None and getattr(module, "is_causal", False):
        scores = scores.masked_fill(~scores.new_ones(scores.shape, dtype=torch.bool).tril(), -1e4)
    weights = scores.float().softmax(-1).to(value.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def wrapping(plain):
    @functools.wraps(plain)
    def doubled(*args, **kwargs):
        out, weights = plain(*args, **kwargs)
        return out * 1.5, weights

    return doubled


@contextlib.contextmanager
def registered(registry, function):
    before = dict(registry._global_mapping)
    registry.register("sdpa", function)
    try:
        yield
    finally:
        registry._global_mapping.clear()
        registry._global_mapping.update(before)


@contextlib.contextmanager
def set_in_instance(function):
    ALL_ATTENTION_FUNCTIONS["sdpa"] = function
    try:
        yield
    finally:
        del ALL_ATTENTION_FUNCTIONS["sdpa"]


def attention_layers(model):
    return [each for each in model.modules() if hasattr(each, "is_causal") and hasattr(each, "config")]


def eager_of(model, function):
    """Puts a function in the place of the eager attention of the model's module, as users patch it."""
    home = sys.modules[type(attention_layers(model)[0]).__module__]
    if function == "wrapping":
        function = wrapping(home.eager_attention_forward)
    return mock.patch.object(home, "eager_attention_forward", function)


@contextlib.contextmanager
def in_one_layer(model):
    layer = attention_layers(model)[-1]
    plain = layer.forward

    def forward(self, *args, **kwargs):
        out, *others = plain(*args, **kwargs)
        masks = [each for each in (*args[1:], kwargs.get("attention_mask")) if isinstance(each, torch.Tensor)]
        return out * (1.5 + any(each.ndim == 4 and each.shape[-1] == LENGTH for each in masks)), *others

    layer.forward = MethodType(forward, layer)
    yield


def masks_of_ones_own(**kwargs):
    mask = sdpa_mask(**{**kwargs, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})
    return mask & (torch.arange(kwargs["kv_length"]) % 3 < 2)


OWN = {
    "registered": lambda model: registered(AttentionInterface, own_function),
    "wrapping sdpa": lambda model: registered(AttentionInterface, wrapping(ALL_ATTENTION_FUNCTIONS["sdpa"])),
    "in the instance": lambda model: set_in_instance(own_function),
    "eager": lambda model: eager_of(model, own_function),
    "wrapping eager": lambda model: eager_of(model, "wrapping"),
    "one layer": in_one_layer,  # replaces the layer's forward()
    "mask": lambda model: registered(AttentionMaskInterface, masks_of_ones_own),
}


def learned_scale(model, rng):
    for layer in attention_layers(model):
        if hasattr(layer, "scaling"):
            layer.scaling = nn.Parameter(torch.tensor(0.4))


def scale_in_a_buffer(model, rng):
    for layer in attention_layers(model):
        layer.scaling = torch.tensor(0.4)


def other_scale(model, rng):
    for layer in attention_layers(model):
        layer.scaling = rng.choice([0.1, 1, 2.0])


def half_frozen(model, rng):
    model.requires_grad_(False)
    attention_layers(model)[-1].requires_grad_(True)


def in_evaluation_mode(model, rng):
    attention_layers(model)[0].eval()


LAYERS = [learned_scale, scale_in_a_buffer, other_scale, half_frozen, in_evaluation_mode]


def zeros(inputs):
    inputs["attention_mask"].zero_()


def cut(inputs):
    inputs["attention_mask"][..., 4:] = 0


def positions(inputs):
    inputs["position_ids"].zero_()


CHANGES = [zeros, cut, positions]


class Case:
    """One random case: repeats the same draws for the model's own attention and for attention in chunks."""

    def __init__(self, seed):
        rng = self.rng = random.Random(seed)
        self.seed = seed
        self.kind = rng.choice(sorted(KINDS))
        self.attention = rng.choice(["sdpa", "sdpa", "eager"] if self.kind not in EAGER else ["eager"])
        self.mask = rng.choice(sorted(MASKS) + ["padding", "bool padding", "none"] * 3)
        if self.attention == "eager" and self.mask == "padding on the left":
            self.mask = "padding"  # eager attention of padding that sees nothing sees all (docs/long-texts.md)
        self.positions = rng.choice(sorted(POSITIONS)) if self.kind in DECODERS and self.kind[:3] != "OPT" else "none"
        self.own = rng.choice(sorted(OWN)) if rng.random() < 0.3 else None
        self.own_from = rng.choice([0, 1])  # the step before which a user's function comes
        self.layers = rng.choice(LAYERS) if rng.random() < 0.2 else None
        self.change = rng.choice(CHANGES) if rng.random() < 0.35 else None
        self.checkpointing = rng.choice([None, None, None, {"use_reentrant": False}, {"use_reentrant": True}])
        self.dtype = rng.choice([torch.float32] * 4 + [torch.bfloat16, torch.float64])
        self.autocast = self.dtype is torch.float32 and rng.random() < 0.2
        self.dropout = rng.choice([0.0, 0.0, 0.0, 1.0])
        self.hook = rng.random() < 0.15
        self.low = self.autocast or self.dtype is torch.bfloat16

    def __repr__(self):
        told = {
            name: getattr(each, "__name__", each) for name, each in vars(self).items() if name not in ("rng", "low")
        }
        return str({name: each for name, each in told.items() if each is not None and each is not False})

    def model(self):
        config = {**KINDS[self.kind], "attn_implementation": self.attention}
        known = vars(tiny(self.kind).config)
        config |= {
            name: self.dropout if name[:4] == "atte" or name[:4] == "attn" else 0.0
            for name in DROPOUT
            if name in known
        }
        model = tiny(self.kind, **{**config, "vocab_size": WORDS}).to(self.dtype).train()
        if self.layers is not None:
            self.layers(model, random.Random(self.seed))
        if self.checkpointing is not None:
            model.gradient_checkpointing_enable(self.checkpointing)
            model.enable_input_require_grads()
        return model

    def inputs(self, step):
        rng = random.Random(self.seed * STEPS + step)
        torch.manual_seed(self.seed * STEPS + step)
        tokens = torch.randint(3, WORDS, (BATCH, LENGTH))
        mask, at = MASKS[self.mask](rng), POSITIONS[self.positions](rng)
        labels = tokens.clone()
        if mask is not None and mask.ndim == 2:
            labels[mask == 0] = -100  # padding has no defined labels
        given = {"input_ids": tokens, "labels": labels, "attention_mask": mask, "position_ids": at}
        return {name: each for name, each in given.items() if each is not None}

    def run(self, chunked):
        """Returns the losses and gradients of some steps; an error for a step that failed."""
        model, found, weights = self.model(), [], []
        if self.hook:
            attention_layers(model)[0].register_forward_hook(lambda module, args, out: weights.append(out[1]))
        with contextlib.ExitStack() as stack:
            if self.own == "one layer":  # it has no name under which a later one could be found
                stack.enter_context(in_one_layer(model))
            stack.enter_context(attention_patching.attention_chunked(1 if chunked else None, model))
            for step in range(STEPS):
                if self.own not in (None, "one layer") and step == self.own_from:
                    stack.enter_context(OWN[self.own](model))
                try:
                    found += self.step(model, self.inputs(step))
                except (RuntimeError, ValueError, IndexError, TypeError, AttributeError, KeyError) as error:
                    model.zero_grad()
                    found.append(error)
                found += [each.detach().clone() if isinstance(each, torch.Tensor) else each for each in weights]
                weights.clear()
        return found

    def step(self, model, inputs):
        leaf = inputs.get("attention_mask")
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            loss = model(**inputs).loss
        if self.change is not None:
            with torch.no_grad(), contextlib.suppress(KeyError):
                self.change(inputs)
        loss.backward()
        grads = [each.grad.clone() for each in model.parameters() if each.grad is not None]
        model.zero_grad()
        return [loss.detach(), *grads, *([leaf.grad] if leaf is not None and leaf.requires_grad else [])]


def difference(plain, chunked, low):
    """Returns a sentence about the first difference; None if there is none."""
    for number, (one, other) in enumerate(zip(plain, chunked, strict=False)):
        if isinstance(other, RuntimeError) and "modified by an inplace operation" in str(other):
            return None  # autograd raises so for saved tensors, and transformers' own attention may save others
        if isinstance(one, Exception) or isinstance(other, Exception):
            if type(one) is not type(other) or str(one)[:40] != str(other)[:40]:
                return f"value {number}: {one!r} and {other!r}"[:600]
            continue
        if one is None or other is None:
            if one is not other:
                return f"value {number}: {one} and {other}"[:600]
            continue
        if one.shape != other.shape:
            return f"value {number}: {one.shape} and {other.shape}"
        one, other = one.double(), other.double()
        near = (one.nan_to_num().norm() + 0.1) * (0.25 if low else 1e-5)
        if not torch.equal(one.isnan(), other.isnan()) or (one - other).nan_to_num().norm() > near:
            return f"value {number}: {one.flatten()[:4]} and {other.flatten()[:4]}"
    return None if len(plain) == len(chunked) else f"{len(plain)} and {len(chunked)} values"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", SEEDS)
def test_random_attention_trains_as_the_models_own(seed, monkeypatch):
    calls = mock.Mock(wraps=attention_patching.chunked_attention)
    monkeypatch.setattr(attention_patching, "chunked_attention", calls)
    monkeypatch.setattr("mps_trainer.model.chunked_attention.ROWS", 4)
    wrong = []
    for number in range(seed * CASES, (seed + 1) * CASES):
        case = Case(number)
        if said := difference(case.run(False), case.run(True), case.low):
            wrong.append(f"{case}: {said}")
    assert not wrong, f"{len(wrong)} of {CASES}:\n" + "\n".join(wrong)[:6000]
    assert calls.called
