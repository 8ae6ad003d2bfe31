"""Steps that become slow are reported once, with what the machine says. Machines and clocks are data."""

import json
import os
import sys
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch import nn

from mps_trainer.loop import drift
from mps_trainer.loop.drift import (
    CRITICAL,
    NORMAL,
    WARNING,
    DriftWatch,
    HostState,
    Stretch,
    causes,
    expected_seconds,
    read_host_state,
)
from tests.conftest import messages_with

GIB = 1 << 30
# A Mac while its steps were fast, and the same Mac later.
FAST = HostState(thermal=0, pressure=NORMAL, swap=GIB, load=3.0, cores=8)
MACS = {
    "thermal": (replace(FAST, thermal=2), "thermal pressure is heavy, and macOS slows the chip"),
    "swap": (replace(FAST, swap=4 * GIB), "3.0 GiB more are swapped out: use smaller batches"),
    "warning": (replace(FAST, pressure=WARNING), "memory pressure is high: use smaller"),
    "critical": (replace(FAST, pressure=CRITICAL), "memory pressure is critical"),
    "load": (replace(FAST, load=14.2), "the load is 14.2 on 8 cores: close"),
}


@pytest.mark.parametrize("cause", MACS)
def test_a_described_mac_per_cause(cause):
    state, said = MACS[cause]
    (found,) = causes(FAST, state)
    assert found.startswith(said)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"swap": GIB + GIB // 2},  # a little
        {"swap": 0},
        {"load": 8.0},  # there are as many cores
        {"thermal": None, "pressure": None, "swap": None, "load": None},
        {"thermal": None, "pressure": None},  # Linux
    ],
)
def test_macs_on_which_no_cause_is_known(changes):
    assert causes(FAST, replace(FAST, **changes)) == []


def test_a_machine_that_was_as_busy_before_is_no_cause():
    busy = replace(FAST, load=12.0)
    assert causes(busy, replace(FAST, load=14.0)) == []
    assert len(causes(FAST, HostState(thermal=4, pressure=CRITICAL, swap=9 * GIB, load=99.0, cores=8))) == 4


def test_this_machine_has_a_state_and_one_that_does_not_tell_ends_no_run(monkeypatch):
    state = read_host_state()
    assert None not in (state.swap, state.load)
    assert state.cores >= 1
    if sys.platform != "darwin":
        assert (state.thermal, state.pressure) == (None, None)
    monkeypatch.setattr(drift.psutil, "swap_memory", mock.Mock(side_effect=PermissionError))
    assert read_host_state().swap is None


@pytest.mark.parametrize(
    ("script", "level"),
    [
        ('echo "$2 2"', 2),
        ("exit 1", None),
        ("echo", None),
        ('echo "$2 failed"', None),
        (None, None),  # there is no notifyutil
    ],
)
def test_macos_is_asked_for_its_thermal_pressure(monkeypatch, tmp_path, script, level):
    if script is not None:
        (tmp_path / "notifyutil").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "notifyutil").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(drift, "sysctl_int", {"kern.memorystatus_vm_pressure_level": WARNING}.get)
    state = read_host_state()
    assert (state.thermal, state.pressure) == (level, WARNING)


# 1, then batches, elements, and elements times those of one example
@pytest.mark.parametrize(
    ("work", "expected"),
    [
        ((1, 1, 1000, 1000), 1.0),
        ((1, 1, 500, 250), 1.0),  # the optimizer's step is as long
        ((1, 1, 2000, 4000), 4.0),  # attention may be all of it
        ((1, 2, 1000, 500), 2.0),
        ((1, 1, 8000, 64000), 9.0),  # from the other stretch
    ],
)
def test_expected_seconds(work, expected):
    best = [Stretch(1.0, (1, 1, 1000, 1000)), Stretch(9.0, (1, 1, 8000, 64000))]
    assert expected_seconds(work, best) == expected
    assert expected_seconds(work, []) == float("inf")


class Run:
    """Steps with a clock of their own: a part of 10 steps between two logs, and an evaluation after each log."""

    def __init__(self, caplog, states=()):
        self.caplog, self.now, self.step, self.notes = caplog, 0.0, 0, []
        states = iter(states)
        self.watch = DriftWatch(self, clock=lambda: self.now, read_state=lambda: next(states, FAST))
        self.watch.begin(0)

    def note(self, kind, text="", took=0.0):
        self.notes.append((kind, self.step, took))

    def train(self, seconds, length=64, steps=10, batches=1):
        for _ in range(steps):
            for _ in range(batches):
                self.watch.add({"input_ids": torch.ones(4, length, dtype=torch.long), "labels": torch.ones(4)})
                self.now += seconds
            self.step += 1

    def log(self, *given):
        self.train(*given)
        self.watch.end(self.step)
        self.now += 1000.0
        self.watch.begin(self.step)

    @property
    def warnings(self):
        return self.caplog.messages


@pytest.fixture
def run(caplog):
    return Run(caplog)


def test_slow_steps_are_reported_once_with_their_cause(caplog):
    run = Run(caplog, [FAST, MACS["thermal"][0]])
    for seconds in [1.0] * 4 + [1.8] * 8:
        run.log(seconds)
    assert run.warnings == [
        "Steps have become slow: since step 40 they take 1.8 s on average, 1.8 times as long as steps of these shapes "
        "took before. Thermal pressure is heavy, and macOS slows the chip down: let more air reach the Mac."
    ]
    assert run.notes == [("slow", 80, pytest.approx(4 * 18 + 3 * 1000))]  # up to the log that reported them
    run.log(1.0)
    run.log(1.8)
    assert run.notes[1:] == [("steady", 130, 0.0)]


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({}, "thermal pressure, memory pressure, swap and load are normal."),
        ({"thermal": None, "pressure": None}, "swap and load are normal."),  # Linux
    ],
)
def test_unknown_cause_is_said_with_what_is_known(caplog, changes, known):
    run = Run(caplog, [replace(FAST, **changes)] * 2)
    for seconds in (1.0, 1.0, 4.0, 4.0):
        run.log(seconds)
    assert f"No cause is known: {known}" in run.warnings[0]


def cost(length):
    """Returns the seconds of a step of a model: the optimizer's, those of each token, and those of attention."""
    return 0.2 + 4 * length / 1000 + 4 * length * length / 1e5


LENGTHS = [16, 512, 64, 256, 32, 512, 128]
# The arguments of `Run.log`, for one log after the other.
NO_DRIFT = {
    "first steps compile": [(9.0,), (1.0,), (1.0,)],
    "single stretches": [(seconds,) for seconds in (1.0, 1.0, 9.0, 1.0, 9.0, 1.0)],
    "a little slower": [(1.0,)] * 3 + [(1.49,)] * 20,
    "slow for 48 seconds": [(1.0,)] * 3 + [(1.6,)] * 3,
    "slow for 20 seconds": [(0.01,)] * 600 + [(0.02,)] * 100,
    "faster and faster": [(3.0 - 0.1 * i,) for i in range(20)],
    **{
        f"buckets, {steps} steps": [(cost(each), each, steps) for each in LENGTHS * 40] + [(cost(512), 512)] * 20
        for steps in (1, 10)
    },
    "growing lengths": [(cost(length), length) for length in range(8, 800, 8) for _ in range(3)],
    "shapes that are compiled": [(1.0,)] * 5 + [(30.0, length) for length in range(100, 200)],
    "more batches in a step": [(1.0,)] * 5 + [(1.0, 64, 10, 4)] * 20,
}


@pytest.mark.parametrize("logs", NO_DRIFT.values(), ids=NO_DRIFT)
def test_steps_that_are_not_slow_for_long_or_longer_by_their_work(run, logs):
    for each in logs:
        run.log(*each)
    assert run.warnings == []


def test_short_steps_are_compared_over_stretches_of_seconds(run):
    for seconds in [0.01, 0.03, 0.001] * 300:  # noise of one log
        run.log(seconds)
    assert run.warnings == []
    for _ in range(1000):
        run.log(0.03)
    assert len(run.warnings) == 1


@pytest.mark.parametrize("slower", [1.6, 3.0])
def test_buckets_that_become_slow_are_found(run, slower):
    for length in LENGTHS * 20:
        run.log(cost(length), length)
    for length in LENGTHS * 20:
        run.log(slower * cost(length), length)
    assert len(run.warnings) == 1


def test_batches_without_tensors_do_not_count(run):
    for seconds in [1.0] * 5 + [9.0] * 20:
        run.watch.add([{"prompt": "its answer may be long"}])
        run.now += 10 * seconds
        run.step += 10
        run.watch.end(run.step)
        run.watch.begin(run.step)
    assert run.warnings == []


class Slow(nn.Module):
    """A model whose steps take 1 second of a clock, and 1.8 from a step on; a batch of an evaluation takes 50."""

    def __init__(self, clock, slow_from=10_000):
        super().__init__()
        self.head, self.clock, self.slow_from, self.calls = nn.Linear(4, 2), clock, slow_from, 0

    def forward(self, x, labels=None):
        self.calls += self.training
        first = 30.0 if self.calls < 3 else 1.0  # compilation
        self.clock.now += 50.0 if not self.training else 1.8 if self.calls > self.slow_from else first
        logits = self.head(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(DriftWatch.__init__, "__defaults__", (lambda: clock.now, lambda: FAST))
    return clock


SETTINGS = {
    "max_steps": 100, "per_device_train_batch_size": 4, "report": True, "save_strategy": "steps", "save_steps": 6,
    "eval_strategy": "steps", "eval_steps": 5,
}  # fmt: skip


@pytest.mark.every_device
def test_run_that_becomes_slow_warns_once_and_its_report_shows_where(trained, clock, caplog):
    trainer = trained({"model": Slow(clock, slow_from=40)}, **SETTINGS)
    (said,) = messages_with(caplog, "become slow")
    assert said.startswith("Steps have become slow: since step 4")
    assert "they take 1.8 s on average, 1.8 times as long as steps of these shapes took before." in said
    with open(f"{trainer.args.output_dir}/run_record.json") as file:
        (event,) = [event for event in json.load(file)["events"] if event["kind"] == "slow"]
    assert event["text"] == said
    assert event["took"] >= 60
    assert 70 <= event["step"] <= 80
    with open(f"{trainer.args.output_dir}/report.html") as file:
        assert "slow: Steps have become slow" in file.read()


@pytest.mark.every_device
@pytest.mark.parametrize("logging_steps", [1, 4, 7])
def test_evaluations_saves_and_first_steps_are_not_slow(make_trainer, clock, caplog, monkeypatch, logging_steps):
    trainer = make_trainer({"model": Slow(clock)}, **{**SETTINGS, "logging_steps": logging_steps, "report": False})
    save = trainer._save_checkpoint

    def slow_save(*args):
        clock.now += 100.0
        save(*args)

    monkeypatch.setattr(trainer, "_save_checkpoint", slow_save)
    trainer.train()
    assert "slow" not in caplog.text


def test_one_process_of_a_machine_watches(make_trainer, monkeypatch):
    trainer = make_trainer(max_steps=1)
    monkeypatch.setattr(trainer, "is_local_process_zero", lambda: False)
    watched = []
    monkeypatch.setattr(DriftWatch, "add", lambda *_: watched.append(1))
    trainer.train()
    assert watched == []
    assert not trainer.state.is_local_process_zero
