"""Applies autocast to the forward pass and a gradient scaler for float16."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import torch
from torch import nn

from ..devices.accelerators import ACCELERATORS
from ..devices.accelerators.cpu import SLOW_BFLOAT16
from ..devices.facts import cpu_bfloat16
from ..distributed.sharded import is_sharded
from ..errors import MisconfigurationException
from ..utils.attributes import attributes_replaced
from ..utils.nested import map_tensors
from ..utils.text import first_line
from .introspection import is_offloaded
from .number_formats import check_formats

logger = logging.getLogger(__name__)

_HALF = (torch.bfloat16, torch.float16)


class MixedPrecision:
    """Autocasts to bfloat16, or to float16 with a gradient scaler, or not at all.

    Args:
        asked: "bf16", "fp16" or "no".

    Raises:
        MisconfigurationException: if the device does not compute in the format asked for.
    """

    def __init__(self, device: torch.device, asked: str = "no") -> None:
        self.device = device
        self.dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(asked)
        if self.dtype is not None:
            _require(self.dtype, device)
            if self.dtype is torch.bfloat16 and device.type == "cpu" and cpu_bfloat16() is False:
                logger.warning("bf16=True on the CPU: %s. Leave bf16 out.", SLOW_BFLOAT16)
        self.scaler = torch.amp.GradScaler(device.type) if asked == "fp16" else None
        self.step_was_skipped = False
        self._unscaled: set[int] = set()
        self._applied: set[nn.Module] = set()  # models whose forward is autocast now
        self.has_model = False  # whether a model has been prepared

    def prepare(self, model: nn.Module, place: bool = True) -> None:
        """Moves `model` to the device, unless it is sharded or Accelerate offloads its weights."""
        self.has_model = True
        if place and not (is_sharded(model) or is_offloaded(model)):
            check_formats(model, self.device)
            model.to(self.device)

    @contextlib.contextmanager
    def applied_to(self, model: nn.Module) -> Iterator[None]:
        """Applies autocast to `model.forward` inside, and ends it at the end.

        A wrapper that somebody put around it meanwhile stays, and so does a copy of the model. From then on both
        compute as the model did before.
        """
        if self.dtype is None or model in self._applied:
            yield
            return
        is_on = [True]
        self._applied.add(model)
        try:
            with attributes_replaced([(model, "forward", self._autocast_forward(model, is_on))]):
                yield
        finally:
            is_on.clear()
            self._applied.remove(model)

    def _autocast_forward(self, model: nn.Module, is_on: list[bool]) -> Callable:
        """Returns a forward that computes under autocast and returns float32, as Accelerate's `prepare_model` does.

        What uses the outputs, such as a `compute_loss` of one's own, then computes in float32. Once `is_on` is empty,
        the model computes as before.
        """
        method = getattr(model.forward, "__func__", None)
        forward: Any = method or model.forward

        @functools.wraps(forward)
        def in_half_precision(*args: Any, **kwargs: Any) -> Any:
            if not is_on:
                return forward(*args, **kwargs)
            with torch.autocast(self.device.type, self.dtype):
                outputs = forward(*args, **kwargs)
            return map_tensors(outputs, lambda one: one.float() if one.dtype in _HALF else one)

        return in_half_precision if method is None else MethodType(in_half_precision, model)

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        (loss if self.scaler is None else self.scaler.scale(loss)).backward(**kwargs)

    def check_weights(self, model: nn.Module, optimizer: Any) -> None:
        """Raises MisconfigurationException if `optimizer` trains weights in float16, which no scaler can unscale."""
        groups = [] if self.scaler is None else getattr(optimizer, "param_groups", [])
        trained = {id(weight) for group in groups for weight in group["params"] if weight.dtype is torch.float16}
        names = [name for name, weight in model.named_parameters() if weight.requires_grad and id(weight) in trained]
        if names:
            raise MisconfigurationException(
                f"fp16=True needs weights in float32, and trainable ones are in float16, for example {names[0]}: "
                "their gradients cannot be unscaled. from_pretrained loads weights in the format of the checkpoint. "
                "Load the model with dtype=torch.float32."
            )

    def unscale(self, optimizer: Any) -> None:
        """Unscales the gradients, once per update even if called again."""
        if self.scaler is not None and id(optimizer) not in self._unscaled:
            self.scaler.unscale_(optimizer)
            self._unscaled.add(id(optimizer))

    def step(self, optimizer: Any) -> bool:
        """Steps the optimizer. Returns False if the scaler skipped the step because of an overflow.

        A fused optimizer is always stepped and leaves the weights alone by itself, so that no one waits to hear of it.
        """
        if self.scaler is None:
            optimizer.step()
            return True
        stepped: list[bool] = []
        hook = optimizer.register_step_post_hook(lambda *_: stepped.append(True))
        self.scaler.step(optimizer)
        hook.remove()
        self.scaler.update()
        self._unscaled.clear()
        self.step_was_skipped = not stepped
        return bool(stepped)

    def abandon_step(self) -> None:
        """Abandons a step, so that the next gradients are unscaled again. Reads the scale."""
        if self.scaler is not None:
            state, self.scaler = self.scaler.state_dict(), torch.amp.GradScaler(self.device.type)
            self.scaler.load_state_dict(state)
            self._unscaled.clear()


def set_tf32(device: torch.device, wanted: bool | None) -> None:
    """Allows or forbids TensorFloat-32 in products of float32 matrices; None leaves it as it is.

    Raises:
        MisconfigurationException: if it is wanted on a device that has none.
    """
    if wanted is None:
        return
    capable = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8
    if wanted and not capable:
        raise MisconfigurationException(
            f"--tf32 requires an Ampere or newer CUDA GPU, and this run is on {device}. Remove tf32."
        )
    if capable:
        torch.backends.cuda.matmul.allow_tf32 = wanted
        torch.backends.cudnn.allow_tf32 = wanted


def _require(dtype: torch.dtype, device: torch.device) -> None:
    if dtype is torch.float16 and not ACCELERATORS[device.type].scales_gradients(torch.__version__):
        raise MisconfigurationException(
            f"fp16=True, but torch {torch.__version__} has no gradient scaler for mps, which came with torch 2.8. "
            "Install a newer one: python -m pip install -U 'torch>=2.8'; or use bf16=True (from macOS 14 on), or "
            "neither."
        )
    flag = "bf16" if dtype is torch.bfloat16 else "fp16"
    try:
        supported = device.type != "cuda" or dtype is not torch.bfloat16 or torch.cuda.is_bf16_supported()
        why = "this GPU is older than Ampere"
        torch.ones(1, dtype=dtype, device=device) * 2
    except (RuntimeError, TypeError) as error:  # mps before macOS 14 refuses bfloat16 with a TypeError
        supported, why = False, first_line(error)
    if not supported:
        other = "fp16" if flag == "bf16" else "bf16"
        raise MisconfigurationException(
            f"{flag}=True, but {device} does not compute in {str(dtype).removeprefix('torch.')}: {why}. "
            f"Use {other}=True, or neither."
        )
