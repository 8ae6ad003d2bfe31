"""Tests the message of a command that ends with an error."""

import pytest

from mps_trainer.utils.refusal import refuse, wants_traceback


@pytest.mark.parametrize(("value", "wanted"), [(None, False), ("", False), ("0", False), ("1", True), ("true", True)])
def test_the_variable_asks_for_a_traceback(monkeypatch, capsys, value, wanted):
    monkeypatch.delenv("MPS_TRAINER_TRACEBACK", raising=False)
    if value is not None:
        monkeypatch.setenv("MPS_TRAINER_TRACEBACK", value)
    assert wants_traceback() is wanted
    assert refuse("program", ValueError("wrong"), status=7) == 7
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "program: error: wrong"
    assert len(lines) == (2 if wanted else 1)  # an error that was never raised has no frames
