"""The checks, run in this process on the device that a test has."""

import pytest

from mps_trainer.selftest import CHECKS, run_selftest


@pytest.fixture
def results(monkeypatch, request):
    """Runs the checks with these names (all of them by default); what became of each, by name."""
    on_mps = "mps" in request.fixturenames
    if not on_mps:
        # a machine on which these tests run may have a GPU
        monkeypatch.setenv("ACCELERATE_USE_CPU", "true")

    def run(*names: str):
        simulated = request.getfixturevalue("mps") if on_mps else None
        checks = {name: check for name, check in CHECKS.items() if not names or name in names}
        report = run_selftest(simulated, checks=checks)
        assert report.simulated == on_mps
        return {check.name: check for check in report.checks}

    return run
