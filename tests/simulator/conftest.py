"""The simulated device, on and with its settings. It needs Linux, a CPU build of torch and a compiler."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mps_trainer.simulator import SimulatedMPS, SimulatorUnavailableError, simulated_mps


@pytest.fixture(scope="session")
def built() -> None:
    """The device is compiled. Where it cannot be, tests that need it are skipped with the reason that users get."""
    try:
        with simulated_mps():
            pass
    except SimulatorUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def mps(built: None) -> Iterator[SimulatedMPS]:
    """As it is by default: operators without a kernel fail."""
    with simulated_mps(fallback=False) as device:
        yield device


@pytest.fixture
def mps_with_fallback(built: None) -> Iterator[SimulatedMPS]:
    with simulated_mps(fallback=True) as device:
        yield device


@pytest.fixture
def mps_like_cpu(built: None) -> Iterator[SimulatedMPS]:
    """Draws the random numbers of the CPU, so that both can be compared bit by bit."""
    with simulated_mps(fallback=False, same_draws_as_cpu=True) as device:
        yield device
