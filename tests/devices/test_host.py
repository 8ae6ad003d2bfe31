"""The load of the processors, and what else psutil tells of the machine."""

from __future__ import annotations

import psutil
import pytest

from mps_trainer.devices.accelerators import host
from mps_trainer.devices.accelerators.host import ProcessorLoad, host_stats

TIMES = type(psutil.cpu_times())


@pytest.fixture
def clocks(monkeypatch):
    """Sets the processors' clocks, and the time, in seconds."""

    def at(now, **times):
        monkeypatch.setattr(host.time, "monotonic", lambda: now)
        monkeypatch.setattr(psutil, "cpu_times", lambda: TIMES(**{**dict.fromkeys(TIMES._fields, 0.0), **times}))

    return at


def test_the_first_look_has_nothing_to_compare_with(clocks):
    clocks(1.0, user=50.0, idle=50.0)
    assert ProcessorLoad().look() is None


def test_the_load_is_of_the_time_between_two_looks(clocks):
    load = ProcessorLoad()
    clocks(1.0, user=50.0, idle=50.0)
    load.look()
    clocks(2.0, user=51.0, system=0.5, idle=50.5)
    assert load.look() == 75.0
    clocks(3.0, user=51.0, system=0.5, idle=52.5)
    assert load.look() == 0.0


@pytest.mark.skipif("guest" not in TIMES._fields, reason="only Linux counts guests")
def test_guests_are_counted_once_and_waiting_for_disks_is_idle(clocks):
    load = ProcessorLoad()
    clocks(1.0)
    load.look()
    clocks(2.0, user=1.0, guest=1.0, idle=2.0, iowait=1.0)
    assert load.look() == 25.0


def test_looks_in_quick_succession_have_the_same_answer(clocks):
    load = ProcessorLoad()
    clocks(1.0)
    load.look()
    clocks(2.0, user=1.0, idle=3.0)
    assert load.look() == 25.0
    clocks(2.05, user=1.05, idle=3.0)
    assert load.look() == 25.0
    clocks(2.5, user=1.5, idle=3.0)
    assert load.look() == 100.0  # since the last answer that was measured


def test_clocks_that_stand_still_or_go_back_leave_the_last_answer(clocks):
    load = ProcessorLoad()
    clocks(1.0, user=1.0)
    load.look()
    clocks(2.0, user=2.0, idle=1.0)
    assert load.look() == 50.0
    clocks(3.0, user=2.0, idle=1.0)
    assert load.look() == 50.0
    clocks(4.0, user=1.0, idle=1.0)
    assert load.look() == 50.0


def test_the_first_figures_of_a_process_are_without_the_load(monkeypatch, clocks):
    monkeypatch.setattr(host, "_load", ProcessorLoad())
    clocks(1.0, user=1.0)
    assert set(host_stats()) == {"process_rss_bytes", "memory_available_bytes", "swap_used_bytes", "swap_percent"}
    clocks(2.0, user=2.0)
    assert host_stats()["cpu_percent"] == 100.0
