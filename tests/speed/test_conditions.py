"""Times are compared on a quiet machine alone. Machines are data."""

from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest

from mps_trainer.devices import probes
from mps_trainer.loop.drift import CRITICAL, NORMAL, WARNING, HostState
from mps_trainer.tools.speed import conditions
from mps_trainer.tools.speed.conditions import Conditions, ConditionsWatch, unjudgeable

GIB = 1 << 30
QUIET = HostState(thermal=0, pressure=NORMAL, swap=GIB, load=1.2, cores=8)
MAC = Conditions(QUIET, QUIET, saves_power=False, others=0.4)
REASONS = {
    "hot before": ({"before": replace(QUIET, thermal=1)}, "the machine is hot: thermal pressure is moderate"),
    "hot after": ({"after": replace(QUIET, thermal=2)}, "the machine is hot: thermal pressure is heavy"),
    "a level that is not known": (
        {"after": replace(QUIET, thermal=9)},
        "the machine is hot: thermal pressure is sleep",
    ),
    "saves energy": ({"saves_power": True}, "Low Power Mode is on"),
    "pressure": ({"after": replace(QUIET, pressure=WARNING)}, "memory pressure is high"),
    "critical": ({"before": replace(QUIET, pressure=CRITICAL)}, "memory pressure is critical"),
    "swaps": ({"after": replace(QUIET, swap=3 * GIB)}, "2.0 GiB were swapped out meanwhile"),
    "busy before": ({"before": replace(QUIET, load=4.1)}, "the machine was busy before: its load was 4.1 on 8 cores"),
    "busy meanwhile": ({"others": 2.1}, "other programs used 2.1 of 8 cores meanwhile"),
}


@pytest.mark.parametrize("name", REASONS)
def test_each_reason_alone(name):
    changes, said = REASONS[name]
    (found,) = unjudgeable(replace(MAC, **changes), simulated=False)
    assert found.startswith(said)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"after": replace(QUIET, load=9.0)},  # this process made the load
        {"after": replace(QUIET, swap=GIB + GIB // 2)},
        {"before": replace(QUIET, load=4.0), "others": 2.0},
        {"before": HostState(), "after": HostState(), "saves_power": None, "others": None},  # nothing is known
        {"before": HostState(load=1.5, cores=2), "others": 0.5},
    ],
)
def test_quiet_machines(changes):
    assert unjudgeable(replace(MAC, **changes), simulated=False) == []


def test_a_simulated_device_is_never_judged():
    (found,) = unjudgeable(MAC, simulated=True)
    assert "simulated on the CPU" in found


def test_the_watch_counts_processor_time_of_others_alone(monkeypatch):
    """In ten seconds all processors work for 14, and this process and its children for 9 of them."""
    of_all = iter(
        [SimpleNamespace(user=90.0, nice=1.0, system=9.0), SimpleNamespace(user=101.0, nice=2.0, system=11.0)]
    )
    own = iter([(3.0, 1.0, 0.0, 0.0), (9.0, 2.0, 1.5, 0.5)])
    names = ("user", "system", "children_user", "children_system")

    def of_process():
        return SimpleNamespace(cpu_times=lambda: SimpleNamespace(**dict(zip(names, next(own), strict=True))))

    monkeypatch.setattr(conditions.psutil, "cpu_times", lambda: next(of_all))
    monkeypatch.setattr(conditions.psutil, "Process", of_process)
    clock = iter([0.0, 10.0])
    monkeypatch.setattr(conditions, "read_host_state", lambda: QUIET)
    monkeypatch.setattr(conditions, "system", lambda: "Darwin")
    monkeypatch.setattr(conditions, "low_power_mode", lambda: True)
    assert ConditionsWatch(clock=lambda: next(clock)).end() == Conditions(
        QUIET, QUIET, saves_power=True, others=pytest.approx(0.5)
    )


def test_a_sandbox_that_forbids_processor_times_tells_nothing(monkeypatch):
    monkeypatch.setattr(conditions.psutil, "cpu_times", mock.Mock(side_effect=PermissionError))
    assert ConditionsWatch().end().others is None


# As manual pages and forums show the output; none of these was read on a Mac here.
PMSET = "System-wide power settings:\nCurrently in use:\n standby              1\n {} 1\n sleep                1\n"


@pytest.mark.parametrize(
    ("settings", "saves"),
    [
        (PMSET.format("lowpowermode        "), True),
        (PMSET.format("powermode           "), True),
        (PMSET.format("lowpowermode        ").replace("mode         1", "mode         0"), False),
        (PMSET.format("powermode           ").replace("powermode            1", "powermode            2"), False),
        (PMSET.format("lessbright          "), None),
    ],
)
def test_low_power_mode_is_read_from_settings(settings, saves, monkeypatch):
    assert probes.saves_power(settings) is saves
    asked = mock.Mock(return_value=SimpleNamespace(stdout=settings))
    monkeypatch.setattr("subprocess.run", asked)
    assert probes.low_power_mode() is saves
    asked.side_effect = FileNotFoundError
    assert probes.low_power_mode() is None
