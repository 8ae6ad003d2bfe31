"""Batches of ever new lengths do not make the memory that mps holds grow without end."""

import logging

import pytest
import torch
from torch import nn

from mps_trainer.devices.watermarks import HIGH
from mps_trainer.guards.memory import CacheGuard
from tests import installed_torch
from tests.conftest import callback, messages_with, on_device, refusal

MIB = 2**20
TIMES = 1.5
LOG = 10  # steps
GROWS = installed_torch() < (2, 14)  # from there on torch splits and joins free blocks (pytorch pull request 188045)


class Reader(nn.Module):
    """64 MiB of tables that are not trained, and a layer that needs twelve tensors as long as the text in passing."""

    def __init__(self):
        super().__init__()
        tables = [nn.Parameter(torch.zeros(2**21), requires_grad=False) for _ in range(8)]
        self.tables = nn.ParameterList(tables)
        self.head = nn.Linear(1, 2)

    def forward(self, x, labels=None):
        needed = [torch.empty(x.numel(), 64, device=x.device) for _ in range(12)]
        logits = self.head(x.float().mean(1, keepdim=True) / len(needed))
        return {"loss": nn.functional.cross_entropy(logits, labels)}


def texts():
    """Returns 2,000 of random lengths."""
    lengths = torch.randint(1, 951, (2000,), generator=torch.Generator().manual_seed(0)).tolist()
    return [{"x": torch.full((length,), 7), "labels": index % 2} for index, length in enumerate(lengths)]


def padded(rows):
    x = nn.utils.rnn.pad_sequence([row["x"] for row in rows], batch_first=True)
    return {"x": x, "labels": torch.tensor([row["labels"] for row in rows])}


@pytest.fixture
def ratios(make_trainer):
    """Trains. Returns, after each log, the bytes held for each byte that tensors took at most."""

    def run(steps, **settings):
        found = []

        def watch(state, **_):
            if state.global_step and state.global_step % LOG == 0:
                found.append(torch.mps.driver_allocated_memory() / torch.accelerator.max_memory_allocated())

        with on_device("mps", memory="256MB"):
            given = {"train_dataset": texts(), "eval_dataset": None, "data_collator": padded}
            make_trainer(
                {"model": Reader(), "callbacks": [callback(on_step_begin=watch)], **given},
                **{"use_cpu": False, "max_steps": steps, "logging_steps": LOG, "per_device_train_batch_size": 4},
                **settings,
            ).train()
        return found

    return run


@pytest.mark.parametrize("steps", [500, pytest.param(5000, marks=pytest.mark.acceptance)])
def test_what_is_held_stays_near_what_is_used_and_grows_without_the_guard_until_torch_2_13(ratios, caplog, steps):
    with caplog.at_level(logging.INFO, logger="mps_trainer.guards"):
        guarded = ratios(steps)
    assert max(guarded) < TIMES
    given_back = messages_with(caplog, "giving back")
    assert len(given_back) < steps / LOG  # a line each, and not at every log
    assert bool(given_back) == GROWS
    assert all("\n" not in line for line in given_back)
    assert (max(ratios(steps, memory_guard=False)) > TIMES) == GROWS


def test_what_cannot_be_given_back_is_not_tried_again_at_each_log(make_trainer, caplog):
    with on_device("mps", memory="512MB"), caplog.at_level(logging.INFO, logger="mps_trainer.guards"):
        trainer = make_trainer(use_cpu=False, max_steps=5)
        tensors = [torch.empty(5 * MIB, dtype=torch.uint8, device="mps") for _ in range(60)]  # 6 in a heap
        kept = tensors[::6]
        del tensors
        torch.accelerator.reset_peak_memory_stats()
        trainer.train()
    assert len(messages_with(caplog, "giving back")) == 1
    assert kept


def test_a_release_keeps_the_compiled_graphs_if_buffers_are_enough():
    """torch.mps.empty_cache() drops the graphs as well, so that each is compiled again."""
    with on_device("mps", memory="512MB") as device:
        guard = CacheGuard(torch.device("mps"))
        square = torch.ones(2, 2, device="mps")

        def graphs():
            square.mm(square)
            return device.report().graphs

        before = graphs()
        unused = [torch.empty(64 * MIB, dtype=torch.uint8, device="mps") for _ in range(4)]
        del unused
        torch.accelerator.reset_peak_memory_stats()
        held = torch.mps.driver_allocated_memory()
        guard.maybe_release()
        assert torch.mps.driver_allocated_memory() < held - 200 * MIB
        assert graphs() == before
        torch.mps.empty_cache()
        assert graphs() == before + 1


@pytest.mark.parametrize(
    ("settings", "environ", "limit"),
    [
        ({}, None, "1.00 GiB"),
        ({"memory_fraction": 0.5}, None, "512.00 MiB"),
        ({"memory_fraction": 0.0}, None, None),
        ({"memory_guard": False, "memory_fraction": 0.5}, None, "1.00 GiB"),
        ({"memory_fraction": 0.5}, "1.5", "1.50 GiB"),
        ({}, "1.5", "1.50 GiB"),
    ],
    ids=str,
)
def test_the_limit_is_that_of_the_environment_or_of_the_arguments(
    make_trainer, monkeypatch, caplog, settings, environ, limit
):
    if environ:
        monkeypatch.setenv(HIGH, environ)
    with on_device("mps", memory="1GB"):
        make_trainer(use_cpu=False, **settings)
        given = {"dtype": torch.uint8, "device": "mps"}
        if limit:
            assert f"max allowed: {limit}" in refusal(torch.empty, 2 * 2**30, kind=RuntimeError, **given)
        else:
            torch.empty(2 * 2**30, **given)
    assert len(messages_with(caplog, "no effect")) == (environ is not None and "memory_fraction" in settings)


def test_steps_between_two_logs_are_left_alone_and_the_cpu(mps, make_trainer, monkeypatch):
    looks = []
    monkeypatch.setattr(CacheGuard, "maybe_release", lambda self: looks.append(1))
    make_trainer(max_steps=12, logging_steps=5).train()
    assert len(looks) == 2
    make_trainer(max_steps=2, use_cpu=True).train()
    assert len(looks) == 2
