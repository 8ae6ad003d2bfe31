"""The simulated device, on and with its settings. It needs Linux and a compiler."""

import pytest

from tests.conftest import on_device


@pytest.fixture
def mps_with_fallback():
    with on_device("mps", fallback=True) as device:
        yield device
