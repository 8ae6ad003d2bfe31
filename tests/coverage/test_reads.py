"""Where the host waits for the device: found with its line, and not where no device is asked."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mps_trainer.coverage import Tracer, trace
from tests import installed_torch

from .conftest import reads

ON_DEVICE = torch.randn(4, 3)
MASK = ON_DEVICE > 0
ROWS = torch.tensor([0, 2])


def values() -> torch.Tensor:
    return ON_DEVICE.clone()


def put(index: object, value: object) -> None:
    values()[index] = value


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
    "multinomial": lambda: torch.multinomial(ON_DEVICE.softmax(-1), 1),
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
    "of a copy on the host": lambda: values().sum().new_tensor(1.0),
    "to another number format": lambda: values().to(torch.float16),
    "to a device": lambda: values().to(torch.device("cpu")),
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
        batch = torch.tensor(lengths).to(torch.device("cpu"))
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


def test_the_line_is_the_library_s_where_the_library_asks():
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertModel(BertConfig(vocab_size=16, max_position_embeddings=8, **sizes))
    ids = torch.ones(2, 4, dtype=torch.long)
    report = trace(model, input_ids=ids, attention_mask=torch.ones_like(ids))
    assert all("transformers" in str(read.where) for read in report.blocking_reads if read.where)
