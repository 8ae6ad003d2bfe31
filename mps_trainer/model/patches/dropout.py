"""Dropout in one kernel on mps.

torch 2.13 has that kernel, and `nn.Dropout` goes past it: it draws, divides and multiplies, each by a kernel of its
own over numbers of full width (pytorch pull request 195011 has what that costs).

Gain, by `python -m benchmarks.patches`: a step of a small BERT has 147 operators, without this 159.
"""

from __future__ import annotations

import contextlib
import copyreg
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ...devices.kernels import dropout_is_one_kernel


class OneKernelDropout(nn.Dropout):
    """`nn.Dropout` by `torch.native_dropout`: other random numbers of the same distribution."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.training or self.inplace or not 0 < self.p < 1 or not input.is_floating_point():
            return super().forward(input)
        return torch.native_dropout(input, self.p, True)[0]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Makes copies, and what is saved of a model during a run, `nn.Dropout`s."""
        return copyreg._reconstructor, (nn.Dropout, object, None), self.__dict__  # type: ignore[attr-defined]


@contextlib.contextmanager
def dropout_in_one_kernel(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Inside, the `nn.Dropout`s of `model` are of that kind, if `device` gains by it."""
    modules: list[nn.Module] = []
    if dropout_is_one_kernel(device):
        modules = [module for module in model.modules() if type(module) is nn.Dropout]
    for module in modules:
        module.__class__ = OneKernelDropout
    try:
        yield
    finally:
        for module in modules:
            module.__class__ = nn.Dropout
