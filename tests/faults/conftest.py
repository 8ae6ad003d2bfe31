"""The devices on which runs are killed."""

import pytest

from mps_trainer.simulator import SimulatorUnavailableError
from mps_trainer.simulator.build import load_extension


@pytest.fixture
def devices() -> tuple[str, ...]:
    """Returns the CPU, and the simulated device where it can be built: `.ci/run` fails before if it cannot."""
    try:
        load_extension()
    except SimulatorUnavailableError:
        return ("cpu",)
    return "cpu", "mps"
