"""Decides whether a run leaves padding out, and compares both ways of computing a batch before it does.

Decisions are made from the model and the arguments, once for a run. They exclude whatever is known not to fit. What is
left is tried: the hidden states of the first batch are computed with padding and without, and have to agree up to
rounding. transformers packs rows for many models that run on across texts, and says nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from transformers import PreTrainedModel

from ..distributed.sharded import is_sharded
from ..overrides import Overrides
from ..training_args import TrainingArguments
from ..utils.text_layout import layout_of
from .attention_patching import KINDS
from .introspection import base_model, loss_is_of_next_token, predicts_next_token, shifts_labels, spans_devices
from .patches.positions import CHANGING
from .patches.unpadded_encoders import UnpaddedEncoder, encoders_in

# The relative error that rounding may cause in a token's last hidden state, by the format of the weights. Models
# compute parts in float32 whatever the format is. The largest that 85 families of causal language models showed in
# float32 was 1e-6. A model that runs on across texts differs by a fraction of its hidden states.
_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
# The same for a text whose neighbours in the row are changed. Only experts, which compute the tokens of all texts
# together, round differently then: by less than a unit in the last place.
_TOLERANCE_OF_NEIGHBOURS = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 4e-3}
# Settings of models that draw random numbers without a layer for it: dropout in attention, noise in routers.
_RANDOM_SETTINGS = (
    *("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "layerdrop", "router_jitter_noise"),
    "input_jitter_noise",
)
_KNOWN_HOOKS = ("mps_trainer.", "transformers.", "peft.", "torch.nn.parallel.", "accelerate.hooks")
_SENTENCE_LIBRARIES = ("sentence_transformers.", "setfit.")  # libraries whose losses get what their modules make
# Modules of sentence-transformers that leave padding out, or compute each vector by itself.
_POOLING = {
    *("SentenceTransformer", "SparseEncoder", "CrossEncoder", "Transformer", "MLMTransformer", "Pooling"),
    *("SpladePooling", "SparseAutoEncoder", "Dense", "Normalize", "Dropout", "LayerNorm", "TiedTranspose"),
}
# Packages whose forward() of a causal language model computes transformers' loss.
_FORWARD_LIBRARIES = ("transformers.", "trl.", "liger_kernel.", "peft.", "accelerate.")
_MODULE_LIBRARIES = ("torch.nn.", "transformers.", "peft.", *_SENTENCE_LIBRARIES)
_ROTATIONS = "its rotary embeddings follow the length of the padded batch"
_SFT_TRAINER_MODULE = "trl.trainer.sft_trainer"
HOOKED = "a forward hook may read the padded batch"  # a reason to keep the padding
_PROMPTS = "is_prompt_learning"  # PEFT's name for adapters that put tokens of their own before the text


@dataclass
class PaddingPlan:
    """Tells how a run leaves padding out.

    Attributes:
        encoders: the encoders whose layers compute without padding; none for a decoder.
        head: the head of a causal language model, whose batches become one row; None for encoders. Rows that a user's
            collator packs are tried in any case.
        loss_of_others: True if other code than the model's computes the loss, which may read all outputs of the model.
        counts_mask: True if TRL's SFTTrainer counts tokens: a row with a filler gets a mask for it.
        in_evaluation: True if evaluations of the run that compute the loss alone leave out padding, too.
        reason: why the run keeps padding, as a clause; "" if it does not.
    """

    encoders: list[UnpaddedEncoder] = field(default_factory=list)
    head: nn.Module | None = None
    loss_of_others: bool = False
    counts_mask: bool = False
    in_evaluation: bool = False
    reason: str = ""

    @property
    def applies(self) -> bool:
        return not self.reason

    @property
    def window(self) -> int | None:
        """Returns the distance at which tokens still see each other in all layers; None if no layer has a limit."""
        return min((window for each in self.encoders if (window := each.window) is not None), default=None)

    def encoders_and_caller(self, model: nn.Module) -> tuple[list[UnpaddedEncoder], nn.Module | None]:
        """Returns the encoders that compute without padding, and the model that has to call them, if not any code."""
        if not self.applies:
            return [], None
        return self.encoders, model if self.loss_of_others and isinstance(model, PreTrainedModel) else None


class PlannedTrainer(Protocol):
    """Names what the plan reads of a Trainer."""

    args: TrainingArguments
    model: Any
    compute_loss_func: Any
    label_smoother: Any
    neftune_noise_alpha: float | None
    _mt_overrides: Overrides


def plan_padding(trainer: PlannedTrainer, device: torch.device) -> PaddingPlan:
    """Returns the plan for a run of a Trainer on `device`."""
    model, args = trainer.model, trainer.args
    choice = padding_choice(args)
    if choice is False:
        return PaddingPlan(reason="padding_free=False")
    if args.torch_compile:
        return PaddingPlan(reason="the model is compiled")
    is_spread = any(is_sharded(each) or isinstance(each, nn.DataParallel) for each in model.modules())
    if args.fsdp or is_spread or spans_devices(model):
        return PaddingPlan(reason="the model is spread over several devices")
    if any(getattr(config, _PROMPTS, False) for config in (getattr(model, "peft_config", None) or {}).values()):
        return PaddingPlan(reason="the adapter puts tokens of its own before each text")
    inner = base_model(model)
    encoders = encoders_in(inner)
    find_reason = _encoders_need_padding if encoders else _decoder_needs_padding
    if (reason := _model_needs_padding(inner, encoders) or find_reason(inner, trainer)) is not None:
        return PaddingPlan(reason=reason)
    draws = choice is None and device.type != "mps" and has_dropout(model)
    reason = f"on {device.type}, a model with dropout draws the numbers of transformers' Trainer" if draws else ""
    if encoders:
        return PaddingPlan(
            encoders,
            loss_of_others=_is_loss_of_others(trainer),
            in_evaluation=_evaluation_may_change_batches(trainer),
            reason=reason,
        )
    # an evaluation counts the labels of a batch without padding, where the first of each text is ignored
    in_evaluation = shifts_labels(inner) and _evaluation_may_change_batches(trainer)
    return PaddingPlan(
        head=inner.get_output_embeddings(),
        counts_mask=trainer._mt_overrides.compute_loss,  # which is TRL's here
        in_evaluation=in_evaluation,
        reason=reason,
    )


def padding_choice(args: TrainingArguments) -> bool | None:
    """Returns `padding_free`; None for the default of a subclass, such as TRL's, whose own field has this name."""
    defaults = {field.name: field.default for field in dataclasses.fields(args)}
    return None if args.padding_free == defaults["padding_free"] else args.padding_free


def has_dropout(model: nn.Module) -> bool:
    """Returns True if a model draws random numbers in training: in its layers, or by its settings."""
    modules = list(model.modules())
    configs = {id(config): config for module in modules if (config := getattr(module, "config", None)) is not None}
    rates = [getattr(config, name, None) for config in configs.values() for name in _RANDOM_SETTINGS]
    rates += [module.p for module in modules if isinstance(module, nn.modules.dropout._DropoutNd)]
    return any(isinstance(rate, (int, float)) and rate > 0 for rate in rates)


def _model_needs_padding(model: nn.Module, encoders: list[UnpaddedEncoder]) -> str | None:
    """Returns why no model in `model` can compute without padding, as a clause; None if one may."""
    networks = [each for each in model.modules() if isinstance(each, PreTrainedModel)]
    if not networks:
        return "the model is not one of transformers"
    kinds = {each.config._attn_implementation for each in networks}
    if not kinds <= set(KINDS):
        return f"its attention is {next(iter(kinds - set(KINDS)))}"
    return HOOKED if has_foreign_hooks(model, encoders) else None


def has_foreign_hooks(model: nn.Module, encoders: list[UnpaddedEncoder]) -> bool:
    """Returns True if a user's forward hook would see a row; outside the layers of an encoder, none does."""
    hooks = [*torch_module._global_forward_hooks.values(), *torch_module._global_forward_pre_hooks.values()]
    inside = [stack for _, stack in encoders] or [model]
    for module in (module for each in inside for module in each.modules()):
        hooks += [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    return any(not _home_of(hook).startswith(_KNOWN_HOOKS) for hook in hooks)


def _home_of(thing: Any) -> str:
    """Returns the module in which a function, or the class of an object, is defined."""
    thing = thing.func if isinstance(thing, functools.partial) else thing
    return getattr(thing, "__module__", None) or type(thing).__module__


def _encoders_need_padding(model: Any, trainer: PlannedTrainer) -> str | None:
    """Returns why the encoders in a model cannot compute without padding, as a clause; None if they may."""
    if _has_changing_rotations(model):
        return _ROTATIONS
    if type(model).__name__.endswith("ForQuestionAnswering"):
        return "its loss reads the padding"
    kind: Any = type(trainer)
    if trainer._mt_overrides.compute_loss and _home_of(kind.compute_loss).startswith(_SENTENCE_LIBRARIES):
        others = [
            type(each).__name__ for each in _outside_networks(model) if _home_of(each).startswith(_SENTENCE_LIBRARIES)
        ]
        unknown = sorted({*others} - _POOLING) or [
            type(each).__name__
            for each in _outside_networks(model)
            if not _home_of(each).startswith(_MODULE_LIBRARIES)
        ]
        return f"its module {unknown[0]} may read the padding" if unknown else None
    is_head = _home_of(model).startswith("transformers.models.") and "For" in type(model).__name__
    if is_head:
        return None
    if _is_loss_of_others(trainer):
        return "other code than the model's computes the loss, and may read the padding"
    # the comparison is made in evaluation mode
    for module in _outside_networks(model):
        names = getattr(getattr(inspect.unwrap(type(module).forward), "__code__", None), "co_names", ())
        asks_mode = not _home_of(module).startswith(_MODULE_LIBRARIES) and "training" in names
        if asks_mode or isinstance(module, nn.modules.batchnorm._BatchNorm):
            return f"its module {type(module).__name__} computes other numbers in training"
    return None


def _is_loss_of_others(trainer: PlannedTrainer) -> bool:
    return trainer._mt_overrides.compute_loss or trainer.compute_loss_func is not None


def _outside_networks(model: nn.Module) -> Iterator[nn.Module]:
    """Yields the modules of a model that are not inside a model of transformers."""
    if isinstance(model, PreTrainedModel):
        return
    yield model
    for child in model.children():
        yield from _outside_networks(child)


def _decoder_needs_padding(model: Any, trainer: PlannedTrainer) -> str | None:
    """Returns why the batches of a decoder cannot become one row, as a clause; None if they may."""
    overrides = trainer._mt_overrides
    computes_own_loss = trainer.compute_loss_func is None and trainer.label_smoother is None
    if not isinstance(model, PreTrainedModel) or not (predicts_next_token(model) and loss_is_of_next_token(model)):
        return "the model is neither an encoder that is known nor a causal language model of transformers"
    if getattr(model.config, "is_encoder_decoder", False) or model.get_output_embeddings() is None:
        return "the model is no decoder with a head"
    forward = vars(model).get("forward", type(model).forward)
    forward = inspect.unwrap(getattr(forward, "__func__", forward))
    is_of_transformers = _home_of(model).startswith("transformers.models.")
    has_own_loss = getattr(model, "_loss_function", None) is not None
    if has_own_loss or not is_of_transformers or not _home_of(forward).startswith(_FORWARD_LIBRARIES):
        return "its forward or its loss is not that of transformers"
    if any(_is_square(each) for each in model.buffers()):
        return "its attention has a table of positions, which a row may exceed"
    if _has_changing_rotations(model):
        return _ROTATIONS
    is_overridden = overrides.compute_losses_or_items or overrides.see_training_batches
    if not computes_own_loss or (is_overridden and not _overrides_take_rows(trainer)):
        return "other code than the model's computes the loss, or sees the batch"
    if trainer.neftune_noise_alpha is not None:
        return "noise is added to the embeddings by the length of a row"
    if getattr(model.config, "output_router_logits", False):
        return "the loss of its routers counts padding"
    return None


def _is_square(buffer: torch.Tensor) -> bool:
    return buffer.dim() >= 2 and buffer.shape[-1] == buffer.shape[-2] > 1


def _has_changing_rotations(model: nn.Module) -> bool:
    """Returns True if rotary embeddings in a model follow the lengths that they have seen."""
    kinds = [getattr(module, "rope_type", None) for module in model.modules()]
    # ModernBERT and Gemma 3 have one for each kind of layer
    return any(each in CHANGING for kind in kinds for each in (kind.values() if isinstance(kind, dict) else [kind]))


def _overrides_take_rows(trainer: PlannedTrainer) -> bool:
    """Returns True if all methods that see a batch are those of TRL's SFTTrainer, which packs texts in rows itself."""
    overrides = trainer._mt_overrides
    if overrides.get_batch_samples or overrides.move_batches:
        return False
    seeing = [name for name in ("compute_loss", "training_step") if getattr(overrides, name)]
    return all(getattr(getattr(trainer, name), "__module__", "") == _SFT_TRAINER_MODULE for name in seeing)


def _evaluation_may_change_batches(trainer: PlannedTrainer) -> bool:
    """Returns True if no override sees the batches of an evaluation, except that of TRL's SFTTrainer."""
    overrides, step = trainer._mt_overrides, getattr(trainer, "prediction_step", None)
    if overrides.move_batches or overrides.get_num_items_in_batch:
        return False
    return not overrides.prediction_step or getattr(step, "__module__", "") == _SFT_TRAINER_MODULE


@contextlib.contextmanager
def masks_of_rows_dropped(model: nn.Module, applies: bool) -> Iterator[None]:
    """Inside, if it `applies`, `model` does not get the mask of a row without padding, which is for TRL's counts."""

    def drop(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        return (args, {**kwargs, "attention_mask": None}) if layout_of(kwargs.get("position_ids")) else None

    hook = model.register_forward_pre_hook(drop, with_kwargs=True) if applies else None
    try:
        yield
    finally:
        if hook is not None:
            hook.remove()


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, all modules are in evaluation mode and nothing is kept for a backward pass."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            yield
    finally:
        for module in training:
            module.training = True


def hidden_states_of(model: nn.Module, head: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
    """Returns what a model gives its head. The logits, which need the most memory, are not computed."""

    class HeadReached(Exception):
        pass

    hidden: list[torch.Tensor] = []

    def stop(module: nn.Module, args: Any) -> None:
        hidden.append(args[0])
        raise HeadReached

    hook = head.register_forward_pre_hook(stop)
    try:
        model(**inputs)
    except HeadReached:
        pass
    finally:
        hook.remove()
    return hidden[0]


def agree(first: torch.Tensor, second: torch.Tensor, tolerance: float) -> bool:
    """Returns True if the vectors in the last dimension of two tensors are equal up to a relative error."""
    kind = torch.float32 if first.device.type == "mps" else torch.float64  # which mps does not have
    first, second = first.to(kind), second.to(kind)
    error = (first - second).norm(dim=-1) / second.norm(dim=-1).clamp_min(torch.finfo(torch.float32).tiny)
    return bool((error <= tolerance).all())  # not if one is NaN


def tolerance_for(model: nn.Module, of_neighbours: bool = False) -> float:
    """Returns the relative error that rounding may cause, by the coarsest number format of a model's parameters.

    Args:
        of_neighbours: True for the error in a text when other texts of the row change.
    """
    known = _TOLERANCE_OF_NEIGHBOURS if of_neighbours else _TOLERANCE
    kinds = [*(each.dtype for each in model.parameters()), *(each.dtype for each in model.buffers())]
    return max((known.get(kind, 0.0) for kind in kinds), default=0.0)
