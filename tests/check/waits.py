"""Operations that wait for the device, and others that do not."""

from collections.abc import Callable

import torch
from torch.nn import functional as F

from tests import installed_torch


class Given:
    """Tensors on a device, for the check the CPU, which stands for mps."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.values = torch.randn(4, 3).to(device)
        self.mask = self.values > 0
        self.rows = torch.tensor([0, 2]).to(device)

    def copy(self) -> torch.Tensor:
        return self.values.clone()


def put(given: Given, index: object, value: object) -> None:
    given.copy()[index] = value


def fused_adamw(given: Given, rate: float | torch.Tensor) -> None:
    values = given.values
    moments = [torch.zeros_like(values)], [torch.zeros_like(values)], [], [torch.ones_like(values.sum())]
    rates = {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8, "amsgrad": False, "maximize": False}
    torch._fused_adamw_([given.copy()], [values], *moments, lr=rate, **rates)


# In torch 2.15 this is masked_fill_, and before it was not.
PUT_A_NUMBER = {"put a number where a mask says": lambda given: put(given, given.mask, 0.0)}
IS_MASKED_FILL = installed_torch() >= (2, 15)

WAITING: dict[str, Callable[[Given], object]] = {
    ".item()": lambda given: given.copy().sum().item(),
    "tensor in tensor": lambda given: given.rows[0] in given.rows,
    ".tolist()": lambda given: given.copy().tolist(),
    ".cpu()": lambda given: given.copy().cpu(),
    '.to(device="cpu")': lambda given: given.copy().to(device="cpu", dtype=torch.float16),
    "repr()": lambda given: repr(given.copy()),
    "format()": lambda given: f"{given.copy().sum():.3f}",
    "nonzero": lambda given: given.copy().nonzero(),
    "masked_select": lambda given: given.copy().masked_select(given.mask),
    "index with a mask": lambda given: given.copy()[given.mask],
    "put tensors where a mask says": lambda given: put(
        given, given.mask, given.values[given.mask.nonzero(as_tuple=True)]
    ),
    **({} if IS_MASKED_FILL else PUT_A_NUMBER),
    "unique": lambda given: given.rows.unique(),
    "repeat_interleave": lambda given: given.rows.repeat_interleave(given.rows),
    "equal": lambda given: torch.equal(given.copy(), given.values),
    "one_hot, classes not given": lambda given: F.one_hot(given.rows),
    "copy to a host tensor": lambda given: torch.zeros(4, 3).copy_(given.values),
    "masked_fill with a tensor": lambda given: given.copy().masked_fill(given.mask, given.values.sum()),
    "index_fill with a tensor": lambda given: given.copy().index_fill(0, given.rows, given.values.sum()),
    "masked_scatter": lambda given: given.copy().masked_scatter(given.mask, given.values),
    "bernoulli with a tensor without dimensions": lambda given: given.copy().bernoulli_(
        given.values.new_full((), 0.5)
    ),
    "normal with a tensor": lambda given: torch.normal(0.0, given.values.abs()),
    "fused AdamW with a tensor": lambda given: fused_adamw(given, torch.full((), 0.1, device=given.device)),
    "to a device": lambda given: torch.ones(3).to(given.device),
    "to a device, by keyword": lambda given: torch.ones(3).to(device=given.device, dtype=torch.float16),
    "copy of a host tensor": lambda given: given.copy()[0].copy_(torch.ones(3)),
    "tensor of numbers on a device": lambda given: torch.tensor([1.0, 2.0], device=given.device),
    "new_tensor": lambda given: given.copy().new_tensor([1.0]),
}

FREE: dict[str, Callable[[Given], object]] = {
    "index with integers": lambda given: given.copy()[given.rows],
    "put with integers": lambda given: put(given, given.rows, 0.0),
    **(PUT_A_NUMBER if IS_MASKED_FILL else {}),
    "put a tensor of the host where a mask says": lambda given: put(given, given.mask, torch.tensor(0.0)),
    "index with a list": lambda given: (given.copy()[[0, 2]], given.copy()[[True, False, True, True]]),
    "masked_fill": lambda given: given.copy().masked_fill(given.mask, 0.0),
    "where with three arguments": lambda given: torch.where(given.mask, given.values, 0.0),
    "repeat_interleave, size given": lambda given: given.rows.repeat_interleave(given.rows, output_size=2),
    "one_hot, classes given": lambda given: F.one_hot(given.rows, 3),
    "of a host tensor": lambda given: torch.tensor([1.0, 2.0]).sum().item(),
    "of a host factory": lambda given: torch.zeros(3).tolist(),
    "masked_fill with a tensor of the host": lambda given: given.copy().masked_fill(given.mask, torch.tensor(0.0)),
    "bernoulli with a tensor": lambda given: torch.bernoulli(given.values.sigmoid()),
    "lerp with a tensor": lambda given: given.copy().lerp(given.values, given.values.sum()),
    "fused AdamW with a number": lambda given: fused_adamw(given, 0.1),
    "to another number format": lambda given: given.copy().to(torch.float16),
    "to the device where it is": lambda given: given.copy().to(given.device),
    "to a device without waiting": lambda given: (
        torch.ones(3).to(given.device, non_blocking=True),
        torch.ones(3).to(given.device, None, True),
    ),
    "copy of a host tensor without waiting": lambda given: given.copy()[0].copy_(torch.ones(3), non_blocking=True),
    "zeros on a device": lambda given: torch.zeros(2, device=given.device),
}
