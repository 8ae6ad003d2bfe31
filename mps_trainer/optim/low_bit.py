"""Runs torchao's AdamW with states in 8 or 4 bits, without compiling it and in little memory. Needs torchao.

torchao compiles the update for each shape of parameters, 12 s for the first on a CPU. That needs a C++ compiler there,
and on mps inductor's Metal backend, without which it fails (pytorch/ao 955). The same function computes the same
values uncompiled, but then needs temporary memory for each operator: the codes alone have 64 bits until they are
stored. For large embeddings this exceeds what the states save, so a parameter is updated in parts: a step of a model
of the size of Qwen3 0.6B peaks at 6.7 GiB, at 13.3 without parts, and at 10.0 with AdamW (`mps-trainer fit`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torchao.optim
from torchao.optim.adam import single_param_adam

from ..utils import blocks
from ..utils.nested import plain_tensors_in

_PART = 2**22  # elements, a multiple of the block size; a part takes about 200 MB of temporary memory
_SIGNED = {"exp_avg": True, "exp_avg_sq": False}


class _Uncompiled:
    """Replaces the step of an AdamW of torchao. State dictionaries are torchao's, in both directions."""

    @torch.no_grad()
    def step(self: Any, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters. Returns the loss, if `closure` computes it."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state.update({name: self._new_buffer(parameter, signed) for name, signed in _SIGNED.items()})
                state["step"] += 1
                tensors = (parameter.detach(), parameter.grad, state["exp_avg"], state["exp_avg_sq"])
                for part, grad, exp_avg, exp_avg_sq in _parts(*tensors):
                    single_param_adam(
                        part,
                        grad,
                        state["step"],
                        exp_avg,
                        exp_avg_sq,
                        None,  # amsgrad has this state
                        group["lr"],
                        *group["betas"],
                        group["weight_decay"],
                        group["eps"],
                        True,  # AdamW
                        self.bf16_stochastic_round and part.dtype is torch.bfloat16,
                    )
        return loss

    def __getstate__(self: Any) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("block_size", "bf16_stochastic_round", "is_adamw")}
        return {**super().__getstate__(), **own}  # type: ignore[misc]  # torchao's copies lack them

    def load_state_dict(self: Any, state_dict: dict[str, Any]) -> None:
        """Loads a state of the same formats. Raises ValueError for another optimizer's or another model's."""
        super().load_state_dict(state_dict)  # type: ignore[misc]
        for parameter, state in self.state.items():
            for name, signed in _SIGNED.items():
                like = self._new_buffer(parameter.detach().to("meta"), signed)
                if _format(state.get(name)) != _format(like):
                    raise ValueError(f"{name} of a parameter has another shape or format")


def _parts(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yields the parts of tensors of one shape, which share their memory. Only contiguous ones are parted."""
    size = tensors[0].numel()
    if size <= _PART or not all(each.is_contiguous() for each in tensors):
        yield tensors
        return
    flat = [each.view(-1) for each in tensors]
    for part in blocks.slices(size, _PART):
        yield tuple(each[part] for each in flat)


def _format(state: Any) -> tuple[Any, ...]:
    return type(state), *((each.shape, each.dtype) for each in plain_tensors_in(state))


class AdamW8bit(_Uncompiled, torchao.optim.AdamW8bit):
    """`torchao.optim.AdamW8bit` with an uncompiled step."""


class AdamW4bit(_Uncompiled, torchao.optim.AdamW4bit):
    """`torchao.optim.AdamW4bit` with an uncompiled step."""


UNCOMPILED = {torchao.optim.AdamW8bit: AdamW8bit, torchao.optim.AdamW4bit: AdamW4bit}
