"""Tests that waits for the device are found with their lines, and that nothing else is reported."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mps_trainer.check import BlockingRead, CoverageReport, Tracer, trace
from mps_trainer.check.source import SourceLine
from tests import installed_torch

from .conftest import reads

DEVICE = torch.device("cpu")  # which stands for mps
ON_DEVICE = torch.randn(4, 3)
MASK = ON_DEVICE > 0
ROWS = torch.tensor([0, 2])


def values() -> torch.Tensor:
    return ON_DEVICE.clone()


def on_host() -> torch.Tensor:
    return torch.ones(3)


def put(index: object, value: object) -> None:
    values()[index] = value


def fused_adamw(rate: float | torch.Tensor) -> None:
    weight = values()
    moments = [torch.zeros_like(ON_DEVICE)], [torch.zeros_like(ON_DEVICE)], [], [torch.ones_like(ON_DEVICE.sum())]
    rates = {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8, "amsgrad": False, "maximize": False}
    torch._fused_adamw_([weight], [ON_DEVICE], *moments, lr=rate, **rates)


# In torch 2.15 this is masked_fill_, and in 2.13 it was not.
PUT_A_NUMBER = {"put a number where a mask says": lambda: put(MASK, 0.0)}
IS_MASKED_FILL = installed_torch() >= (2, 14)

WAITING = {
    ".item()": lambda: values().sum().item(),
    "float()": lambda: float(values().sum()),
    "if tensor": lambda: 1 if values().sum() else 0,
    "tensor in tensor": lambda: ROWS[0] in ROWS,
    ".tolist()": lambda: values().tolist(),
    ".cpu()": lambda: values().cpu(),
    '.to("cpu")': lambda: values().to("cpu"),
    '.to(device="cpu")': lambda: values().to(device="cpu", dtype=torch.float16),
    ".numpy()": lambda: values().numpy(),
    "numpy.asarray()": lambda: np.asarray(values()),
    "repr()": lambda: repr(values()),
    "format()": lambda: f"{values().sum():.3f}",
    "nonzero": lambda: values().nonzero(),
    "where with one argument": lambda: torch.where(MASK),
    "masked_select": lambda: values().masked_select(MASK),
    "index with a mask": lambda: values()[MASK],
    "put tensors where a mask says": lambda: put(MASK, ON_DEVICE[MASK.nonzero(as_tuple=True)]),
    **({} if IS_MASKED_FILL else PUT_A_NUMBER),
    "unique": lambda: ROWS.unique(),
    "repeat_interleave": lambda: ROWS.repeat_interleave(ROWS),
    "equal": lambda: torch.equal(values(), ON_DEVICE),
    "allclose": lambda: torch.allclose(values(), ON_DEVICE),
    "one_hot, classes not given": lambda: F.one_hot(ROWS),
    "copy to a host tensor": lambda: torch.zeros(4, 3).copy_(ON_DEVICE),
    "masked_fill with a tensor": lambda: values().masked_fill(MASK, ON_DEVICE.sum()),
    "index_fill with a tensor": lambda: values().index_fill(0, ROWS, ON_DEVICE.sum()),
    "masked_scatter": lambda: values().masked_scatter(MASK, ON_DEVICE),
    "bernoulli with a tensor without dimensions": lambda: values().bernoulli_(ON_DEVICE.new_full((), 0.5)),
    "normal with a tensor": lambda: torch.normal(0.0, ON_DEVICE.abs()),
    "fused AdamW with a tensor": lambda: fused_adamw(torch.full((), 0.1, device=DEVICE)),
    "to a device": lambda: on_host().to(DEVICE),
    "to a device, by keyword": lambda: on_host().to(device=DEVICE, dtype=torch.float16),
    "copy of a host tensor": lambda: values()[0].copy_(on_host()),
    "tensor of numbers on a device": lambda: torch.tensor([1.0, 2.0], device=DEVICE),
    "new_tensor": lambda: values().new_tensor([1.0]),
}


@pytest.mark.parametrize("how", WAITING)
def test_a_wait_is_found(how):
    found = trace(WAITING[how]).blocking_reads
    # One of the cases needs a second operation that waits, to have something to put.
    assert [read.calls for read in found] == [1] or how.startswith("put tensors"), found
    assert found[-1].where is not None
    assert found[-1].where.file == __file__


FREE = {
    "index with integers": lambda: values()[ROWS],
    "put with integers": lambda: put(ROWS, 0.0),
    **(PUT_A_NUMBER if IS_MASKED_FILL else {}),
    "put a tensor of the host where a mask says": lambda: put(MASK, torch.tensor(0.0)),
    "index with a list": lambda: (values()[[0, 2]], values()[[True, False, True, True]]),
    "masked_fill": lambda: values().masked_fill(MASK, 0.0),
    "where with three arguments": lambda: torch.where(MASK, ON_DEVICE, 0.0),
    "repeat_interleave, size given": lambda: ROWS.repeat_interleave(ROWS, output_size=2),
    "one_hot, classes given": lambda: F.one_hot(ROWS, 3),
    "shape": lambda: [float(size) for size in values().shape],
    "topk": lambda: values().topk(2),
    "of a host tensor": lambda: torch.tensor([1.0, 2.0]).sum().item(),
    "of a host factory": lambda: torch.zeros(3).tolist(),
    "masked_fill with a tensor of the host": lambda: values().masked_fill(MASK, torch.tensor(0.0)),
    "bernoulli with a tensor": lambda: torch.bernoulli(ON_DEVICE.sigmoid()),
    "lerp with a tensor": lambda: values().lerp(ON_DEVICE, ON_DEVICE.sum()),
    "index_copy": lambda: values().index_copy(0, ROWS, ON_DEVICE[:2]),
    "multinomial": lambda: torch.multinomial(ON_DEVICE.softmax(-1), 1),
    "fused AdamW with a number": lambda: fused_adamw(0.1),
    "to another number format": lambda: values().to(torch.float16),
    "to the device where it is": lambda: values().to(DEVICE),
    "to a device without waiting": lambda: (on_host().to(DEVICE, non_blocking=True), on_host().to(DEVICE, None, True)),
    "copy of a host tensor without waiting": lambda: values()[0].copy_(on_host(), non_blocking=True),
    "zeros on a device": lambda: torch.zeros(2, device=DEVICE),
}


@pytest.mark.parametrize("how", FREE)
def test_what_waits_for_nothing_is_not_reported(how):
    assert reads(trace(FREE[how])) == []


def test_what_was_read_back_is_free_afterwards():
    def step() -> None:
        on_host = values().cpu()
        on_host.tolist()
        on_host.sum().item()
        on_host.numpy()

    assert [what for what, _, _ in reads(trace(step))] == [".cpu()"]


def test_a_copy_on_the_host_has_memory_of_its_own_as_it_would_have():
    tensor = values()
    kept: list[torch.Tensor] = []
    trace(lambda: kept.append(tensor.cpu().zero_()))
    assert not tensor.eq(0).any()


def test_operators_of_the_host_alone_are_left_out():
    assert trace(lambda: torch.zeros(3).add(torch.tensor(1.0)).cumsum(0)).operators == []


def test_reads_of_one_line_are_counted_together():
    def step() -> None:
        for _ in range(3):
            values().sum().item()  # three times

    report = trace(step)
    assert reads(report) == [("aten::_local_scalar_dense", 3, "values().sum().item()  # three times")]
    assert report.ready  # it is slow, and it runs


def test_without_a_module_nothing_but_what_goes_to_a_device_is_on_it():
    """A tracer around a whole script must not take the work of the collator for work of the device."""
    column = torch.arange(6)
    with Tracer() as tracer:
        lengths = column.view(2, 3).sum(-1).tolist()  # a collator's
        batch = torch.tensor(lengths).to(DEVICE, non_blocking=True)
        batch.sum().item()  # the device's
    report = tracer.report()
    assert [line for _, _, line in reads(report)] == ["batch.sum().item()  # the device's"]
    assert "aten::view" not in {use.name for use in report.operators}


def test_the_inputs_and_weights_of_a_module_are_on_the_device():
    model, batch = nn.Linear(3, 2), torch.randn(4, 3)
    with Tracer() as tracer:
        model(batch)
        batch.sum().item()
        model.weight.sum().item()
    assert sum(read.calls for read in tracer.report().blocking_reads) == 2


def test_the_counters_of_an_optimizer_that_has_run_before_are_known_to_be_on_the_host():
    model, batch = nn.Linear(3, 2), torch.randn(4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def step() -> None:
        model(batch).sum().backward()
        optimizer.step()

    step()
    assert reads(trace(step)) == []


def test_a_wait_of_numpy_is_of_the_line_that_calls_it():
    assert [line for _, _, line in reads(trace(lambda: np.sort(values())))][-1].startswith("assert")


@pytest.fixture
def library(tmp_path):
    """Returns a function that makes an installed library of a text."""

    def install(text: str, name: str = "mended", file: str = "losses/pairs.py") -> types.ModuleType:
        path = tmp_path / "lib" / "site-packages" / name / file
        path.parent.mkdir(parents=True)
        path.write_text(text)
        module = types.ModuleType(name)
        exec(compile(text, str(path), "exec"), vars(module))
        return module

    return install


READS = "def twice(values):\n    values.item()\n    values.tolist()\n"


def test_a_wait_inside_a_library_names_it_and_asks_for_no_change_there(library):
    report = trace(library(READS).twice, values().sum())
    assert [read.where.library for read in report.blocking_reads] == ["mended", "mended"]
    assert report.to_dict()["blocking_reads"][0]["where"]["library"] == "mended"
    table = report.table()
    assert "inside mended" in table
    assert "losses/pairs.py:2" in table
    assert "losses/pairs.py:3" in table
    assert "2 calls at 2 lines" in table
    assert "Keep the value" not in table


def test_many_lines_of_a_library_are_one_row():
    file = "/opt/lib/python3.11/site-packages/trl/trainer/sft_trainer.py"
    found = [BlockingRead("aten::item", "forward", 9 - i, SourceLine(file, 100 + i)) for i in range(6)]
    report = CoverageReport("2.13.0", False, blocking_reads=found)
    short, long = report.table(), report.table(verbose=True)
    assert [len([line for line in table.splitlines() if line.startswith("waits")]) for table in (short, long)] == [
        1,
        1,
    ]
    assert [f"sft_trainer.py:{100 + i}" in short for i in range(6)] == [True] * 3 + [False] * 3
    assert "and 3 more" in short
    assert all(f"sft_trainer.py:{100 + i}" in long for i in range(6))
    assert "more" not in long


def test_the_argument_that_turns_a_wait_off_is_named(library):
    text = "def step(args, loss):\n    if (\n        args['logging_nan_inf_filter']\n        and loss\n    ): ...\n"
    step = library(text, "transformers", "trainer.py").step
    table = trace(step, {"logging_nan_inf_filter": True}, values().sum()).table()
    assert "logging_nan_inf_filter=False" in table
    other = library(text, "other", "trainer.py").step
    assert "=False" not in trace(other, {"logging_nan_inf_filter": True}, values().sum()).table()


@pytest.mark.parametrize(
    ("file", "library"),
    [
        ("/venv/lib/python3.11/site-packages/trl/trainer/utils.py", "trl"),
        ("/usr/lib/python3/dist-packages/six.py", "six"),
        (sys.modules["mps_trainer"].__file__, "mps_trainer"),
        ("/home/me/train.py", None),
        ("/home/me/.cache/huggingface/modules/transformers_modules/mine/modeling.py", None),
    ],
)
def test_the_library_of_a_line(file, library):
    assert SourceLine(file, 1).library == library
