"""Tests that waits for the device are found with their lines, and that nothing else is reported."""

import sys
import types

import numpy as np
import pytest
import torch
from torch import nn

from mps_trainer.check import BlockingRead, CoverageReport, Tracer, trace
from mps_trainer.tools.check.source import SourceLine

from . import waits
from .conftest import reads
from .waits import FREE, WAITING, Given

DEVICE = torch.device("cpu")  # it stands for mps
GIVEN = Given("cpu")


def values() -> torch.Tensor:
    return GIVEN.copy()


@pytest.mark.parametrize("how", WAITING)
def test_a_wait_is_found(how):
    found = trace(WAITING[how], GIVEN).blocking_reads
    # One of the cases needs a second operation that waits, to have something to put.
    assert [read.calls for read in found] == [1] or how.startswith("put tensors"), found
    assert found[-1].where is not None
    assert found[-1].where.file == waits.__file__


@pytest.mark.parametrize("how", FREE)
def test_what_waits_for_nothing_is_not_reported(how):
    assert reads(trace(FREE[how], GIVEN)) == []


def test_what_was_read_back_is_free_afterwards():
    tensor = values()

    def step() -> None:
        on_host = tensor.cpu()
        on_host.zero_().tolist()
        on_host.sum().item()
        on_host.numpy()

    assert [what for what, _, _ in reads(trace(step))] == [".cpu()"]
    assert not tensor.eq(0).any()  # the copy has memory of its own, as it would have
    assert trace(lambda: torch.zeros(3).add(torch.tensor(1.0)).cumsum(0)).operators == []
    assert [line for _, _, line in reads(trace(lambda: np.sort(values().cpu())))][-1].startswith("assert")


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
    module = library(READS)

    def step() -> None:
        values().sum().item()  # one's own
        module.twice(values().sum())

    report = trace(step)
    waits_in = [read["where"]["library"] for read in report.to_dict()["blocking_reads"]]
    assert waits_in == [None, "mended", "mended"]
    table = report.table()
    assert table.index("Keep the value") < table.index("inside mended")
    assert table.count("Keep the value") == 1
    assert "inside mended" in table
    assert "losses/pairs.py:2" in table
    assert "losses/pairs.py:3" in table
    assert "2 calls at 2 lines" in table


def test_many_lines_of_a_library_are_one_row():
    file = "/opt/lib/python3.11/site-packages/trl/trainer/sft_trainer.py"
    found = [BlockingRead("aten::item", "forward", 9 - i, SourceLine(file, 100 + i)) for i in range(6)]
    report = CoverageReport("2.13.0", False, blocking_reads=found)
    short, long = report.table(), report.table(verbose=True)
    assert [table.count("\nwaits") for table in (short, long)] == [1, 1]
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
