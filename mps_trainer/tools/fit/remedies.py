"""Applies memory-saving settings to a copy of a Trainer with fake tensors."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...arguments.choices import OptimizerNames
from ...model.activation_checkpointing import enable_activation_checkpointing
from ...model.precision import MixedPrecision
from .fake_tensors import fake_of, make_fake
from .quantized import BYTES, QuantizedLinear, quantize

if TYPE_CHECKING:
    from ...trainer import Trainer

RANK = 8


@dataclass(frozen=True)
class Remedy:
    """A change that saves memory.

    Attributes:
        text: what to write, in arguments of the Trainer where there are some.
        apply: changes the copy; may raise where a model does not allow it.
        is_of_weights: whether it changes or adapts the weights.
        needs_one_example: whether the step has only the first example of the batch.
    """

    text: str
    apply: Callable[[Trainer], None]
    is_of_weights: bool = False
    needs_one_example: bool = False


def remedies_for(trainer: Trainer, examples: int | None) -> list[Remedy]:
    """Returns the remedies that are not in use, in the order in which they cost quality or time, the cheapest first.

    Args:
        examples: in a batch; None if it cannot be split.
    """
    args, model = trainer.args, trainer.model
    adapted = hasattr(model, "peft_config")
    is_quantized = any(isinstance(each, QuantizedLinear) for each in model.modules())
    in_float32 = any(each.dtype is torch.float32 and not each.requires_grad for each in model.parameters())
    is_float32 = next((each.dtype for each in model.parameters()), None) is torch.float32
    has_linear = any(type(each) is nn.Linear for each in model.modules())
    lora = not adapted and has_linear and _takes_lora(model)
    found = []
    if not args.chunked_cross_entropy:
        found.append(Remedy("chunked_cross_entropy=True", _chunk))
    if args.mixed_precision == "no" and is_float32:
        found.append(Remedy("bf16=True", _autocast))
    if not args.activation_checkpointing:
        found.append(Remedy("gradient_checkpointing=True", _checkpoint))
    if examples is not None and examples > 1:
        steps = args.gradient_accumulation_steps * examples
        text = f"per_device_train_batch_size=1, gradient_accumulation_steps={steps}"
        found.append(Remedy(text, lambda _: None, needs_one_example=True))
    if not adapted and _takes_8_bits(trainer):
        found.append(Remedy("optim='adamw_torch_8bit'", _optimize_in_8_bits))
    if lora:
        found.append(Remedy(f"LoRA (rank {RANK}) on all linear layers, with PEFT", _adapt, True))
        if is_float32:
            text = "the same, on weights loaded with dtype=torch.bfloat16"
            found.append(Remedy(text, partial(_adapt, bits=16), True))
    elif adapted and in_float32 and not is_quantized:
        found.append(Remedy("weights loaded with dtype=torch.bfloat16, under the adapters", _freeze, True))
    if (lora or adapted) and not is_quantized and has_linear:
        text = "LoRA on weights loaded in 4 bits" if lora else "weights loaded in 4 bits, under the adapters"
        found.append(Remedy(text, partial(_adapt if lora else _freeze, bits=4), True))
    return found


def together(remedies: list[Remedy]) -> Remedy | None:
    """Returns all remedies combined, with only the last of those for the weights; None for fewer than two."""
    of_weights = [each for each in remedies if each.is_of_weights]
    chosen = [each for each in remedies if each not in of_weights[:-1]]
    if len(chosen) < 2:
        return None

    def apply(stand_in: Trainer) -> None:
        for each in sorted(chosen, key=lambda remedy: not remedy.is_of_weights):  # new weights first
            each.apply(stand_in)

    return Remedy("all of these", apply, needs_one_example=any(each.needs_one_example for each in chosen))


def _chunk(stand_in: Trainer) -> None:
    stand_in.args.chunked_cross_entropy = True


def _checkpoint(stand_in: Trainer) -> None:
    stand_in.args.activation_checkpointing = stand_in.args.gradient_checkpointing = True
    enable_activation_checkpointing(stand_in.model, stand_in.args)


def _autocast(stand_in: Trainer) -> None:
    stand_in._mt_precision = MixedPrecision(stand_in.args.device, "bf16")


def _optimize_in_8_bits(stand_in: Trainer) -> None:
    stand_in.args.optim = OptimizerNames.ADAMW_TORCH_8BIT
    stand_in.optimizer = None


def _adapt(stand_in: Trainer, bits: int = 32) -> None:
    """Adds adapters, to weights of so many bits."""
    from peft import LoraConfig, get_peft_model

    if bits < 32:
        stand_in.model.to(torch.bfloat16)
    if bits == 4:
        quantize(stand_in.model.requires_grad_(False), BYTES[4], torch.bfloat16)
    config = LoraConfig(r=RANK, target_modules="all-linear")
    adapted: Any = get_peft_model(stand_in.model, config, low_cpu_mem_usage=True)
    make_fake(adapted)
    stand_in.model = stand_in.model_wrapped = adapted
    stand_in.optimizer = None


def _freeze(stand_in: Trainer, bits: int = 16) -> None:
    """Gives frozen weights so many bits."""
    for module in stand_in.model.modules():
        for name, weight in module._parameters.items():
            if weight is not None and weight.dtype is torch.float32 and not weight.requires_grad:
                module._parameters[name] = fake_of(weight, torch.bfloat16)  # type: ignore[assignment]
    if bits == 4:
        quantize(stand_in.model, BYTES[4], torch.bfloat16)


def _takes_8_bits(trainer: Trainer) -> bool:
    """Returns True if the optimizer is torch's AdamW by an argument, and torchao is installed."""
    is_adamw = trainer.args.optim in (OptimizerNames.ADAMW_TORCH, OptimizerNames.ADAMW_TORCH_FUSED)
    by_argument = trainer.optimizer_cls_and_kwargs is None and trainer.optimizer is None
    return is_adamw and by_argument and importlib.util.find_spec("torchao") is not None


def _takes_lora(model: nn.Module) -> bool:
    from transformers import PreTrainedModel

    return isinstance(model, PreTrainedModel) and importlib.util.find_spec("peft") is not None
