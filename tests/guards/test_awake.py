"""A Mac stays awake while it trains; caffeinate is a script that does as the one of macOS."""

import contextlib
import os
import sys
import time

import psutil
import pytest

from mps_trainer.guards.awake import awake
from tests.conftest import callback


@pytest.fixture
def caffeinate(tmp_path, monkeypatch):
    """Returns the file with the arguments of the one that was started."""
    script = tmp_path / "caffeinate"
    script.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/said.tmp\nmv {tmp_path}/said.tmp {tmp_path}/said\nexec sleep 60\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path / "said"


def children():
    return [child for child in psutil.Process().children() if child.name() in ("caffeinate", "sleep")]


def test_a_mac_is_kept_awake_and_may_sleep_after_a_run_that_failed(caffeinate, monkeypatch, caplog):
    monkeypatch.setattr(sys, "platform", "darwin")
    caplog.set_level("INFO", "mps_trainer")
    with contextlib.suppress(KeyError), awake(True):
        while not caffeinate.exists():
            time.sleep(0.01)
        assert caffeinate.read_text().split() == ["-i", "-w", str(os.getpid())]
        assert len(children()) == 1
        raise KeyError
    assert children() == []
    assert caplog.text.count("Closing the lid still puts it to sleep.") == 1
    monkeypatch.setenv("PATH", "")  # a Mac without caffeinate
    with awake(True):
        assert children() == []


@pytest.mark.parametrize(
    ("platform", "device", "keep_awake", "is_asked"),
    [
        ("darwin", "mps", True, True),
        ("darwin", "mps", False, False),
        ("darwin", "cpu", True, False),
        ("linux", "mps", True, False),  # the simulated device
    ],
)
def test_described_machines(mps, make_trainer, caffeinate, monkeypatch, platform, device, keep_awake, is_asked):
    found = []
    watch = callback(on_step_end=lambda **_: found.append(len(children())))
    trainer = make_trainer({"callbacks": [watch]}, use_cpu=device == "cpu", keep_awake=keep_awake, max_steps=1)
    monkeypatch.setattr(sys, "platform", platform)
    trainer.train()
    assert found == [is_asked]
    assert children() == []
