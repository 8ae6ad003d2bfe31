"""The model: number formats, activation checkpointing and preparation."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from .fields import option
from .readers import read_integer_not_float

LAUNCHED = "ACCELERATE_MIXED_PRECISION"
PRECISIONS = ("no", "fp16", "bf16")  # the settings of autocast
_CHECKPOINTING = ("activation_checkpointing", "activation_checkpointing_kwargs")
_SAME = {name: name.replace("activation", "gradient") for name in _CHECKPOINTING}  # transformers' older names
_SAME.update({old: new for new, old in _SAME.items()})


@dataclass
class PrecisionArguments:
    """Number formats and activation checkpointing."""

    bf16: bool = option(False, "Autocast to bfloat16 (cpu, mps from macOS 14, cuda from Ampere).")
    fp16: bool = option(False, "Autocast to float16 with a gradient scaler.")
    # Both flags end up as true or false, and equal. They begin as None, which is the one that was not given.
    activation_checkpointing: bool = option(
        None, "Recompute activations in the backward pass instead of storing them: less memory, more time."
    )
    activation_checkpointing_kwargs: dict | str | None = option(
        None, "Settings for torch.utils.checkpoint, as JSON. Default: use_reentrant false."
    )
    gradient_checkpointing: bool = option(None, "Older name of activation_checkpointing.")
    gradient_checkpointing_kwargs: dict | str | None = option(None, "Older name of activation_checkpointing_kwargs.")
    bf16_full_eval: bool = option(False, "Evaluate with weights in bfloat16 instead of autocast.")
    fp16_full_eval: bool = option(False, "Evaluate with weights in float16 instead of autocast.")
    tf32: bool | None = option(None, "Use TensorFloat-32 on cuda from Ampere on. [torch's setting]")

    # Whether the two names of activation checkpointing agree: from then on, setting one sets the other
    _checkpointing_is_merged = False

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if self._checkpointing_is_merged and name in _SAME:
            super().__setattr__(_SAME[name], value)

    def merge_checkpointing(self) -> None:
        """Gives both names of activation checkpointing the value of the one that was given.

        The new name takes precedence, as in transformers, except in a copy that changes the old name alone.
        """
        before = _copied_from(self)
        for new in _CHECKPOINTING:
            value, old_value = getattr(self, new), getattr(self, _SAME[new])
            is_changed = before is not None and old_value != getattr(before, _SAME[new])
            if value is None or (is_changed and value == getattr(before, new)):
                value = old_value
            setattr(self, new, value)
            setattr(self, _SAME[new], value)
        self._checkpointing_is_merged = True
        if self.activation_checkpointing is None:
            self.activation_checkpointing = False


@dataclass
class ModelArguments:
    """Preparation of the model."""

    use_cache: bool = option(False, "Value of model.config.use_cache.")
    torch_compile: bool = option(False, "Compile the model with torch.compile.")
    torch_compile_backend: str | None = option(
        None, "Backend of torch.compile; setting it enables torch_compile. [inductor]"
    )
    torch_compile_mode: str | None = option(None, "Mode of torch.compile; setting it enables torch_compile.")
    use_liger_kernel: bool = option(False, "Use the kernels of the package liger-kernel.")
    liger_kernel_config: dict | str | None = option(
        None, "Selection of liger-kernel's kernels, as JSON. [their defaults]"
    )
    chunked_cross_entropy: bool = option(
        True, "Compute the loss of a language model in chunks of logits, unless the logits are needed.", kw_only=True
    )
    chunked_attention: bool | None = option(
        None,
        "Compute attention in blocks, in memory that grows with the length of a text instead of its square; true: "
        "always, false: never. [on mps, for texts of 1,024 tokens or more]",
        kw_only=True,
    )
    padding_free: bool | None = option(
        None,
        "Leave padding out of training: texts of a batch are computed in one row where the model allows it; true: "
        "wherever it does, false: never. [on mps, and elsewhere for models without dropout]",
        kw_only=True,
    )
    skip_unread_tokens: bool = option(
        False,
        "Compute the last layer of classifiers such as BERT for the first token alone, with other draws of dropout.",
        kw_only=True,
    )
    torch_empty_cache_steps: int | None = option(
        None,
        "Release the device's unused memory every this many steps; slower. [never]",
        ge=1,
        read=read_integer_not_float,
    )


def _copied_from(args: Any) -> Any:
    """Returns the arguments from which `dataclasses.replace` is making `args`; None if it is not.

    The values alone do not tell: with one name true and the other false, either one may be the change. So this looks
    at the calls that lead here, as warnings do for the line of the caller.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_locals.get(next(iter(frame.f_code.co_varnames), "")) is args:
        frame = frame.f_back  # a method of `args`, which a subclass may have extended
    if frame.f_globals.get("__name__") == "dataclasses" and frame.f_code.co_name in ("replace", "_replace"):
        return frame.f_locals[frame.f_code.co_varnames[0]]
    return None
