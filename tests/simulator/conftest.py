"""The simulated device, on and with its settings. It needs Linux and a compiler."""

import pytest

from tests.conftest import on_device


@pytest.fixture
def mps_with_fallback():
    with on_device("mps", fallback=True) as device:
        yield device


@pytest.fixture
def mps_like_cpu():
    """Draws the random numbers of the CPU, so that both can be compared bit by bit."""
    with on_device("mps", same_draws_as_cpu=True) as device:
        yield device
