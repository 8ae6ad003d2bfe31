"""The instructions of the processor decide which number format is said to be fastest."""

import logging
from unittest import mock

import pytest
import torch

from mps_trainer.callbacks import overview
from mps_trainer.cli.screen import screen
from mps_trainer.devices import ACCELERATORS, probes
from mps_trainer.devices.facts import MachineFacts, cpu_bfloat16
from mps_trainer.model import precision
from tests.devices.test_facts import raising


@pytest.mark.parametrize(
    ("system", "flags", "expected"),
    [
        ("Linux", "avx2 avx512f avx512_bf16", True),
        ("Linux", "amx_bf16 amx_tile", True),
        ("Linux", "asimd bf16", True),  # arm64
        ("Linux", "avx2 avx512f", False),
        ("Linux", "asimd svebf", None),
        ("Linux", None, None),
        ("Darwin", "bf16", None),
    ],
)
def test_what_the_processor_says(system, flags, expected, monkeypatch):
    with mock.patch.multiple(probes, system=lambda: system, cpuinfo=lambda *names: flags):
        assert cpu_bfloat16() is expected
    facts = MachineFacts(torch_version="2.13.0", python_version="3.11.7", cpu_bfloat16=expected)
    assert ("precision  bf16=True is faster" in screen(facts)) is bool(expected)
    assert ("precision" in screen(facts)) is (expected is not None)
    assert {ACCELERATORS[kind].precision_advice(expected) for kind in ("mps", "cuda")} == {None}
    monkeypatch.setattr("mps_trainer.devices.probes.open", raising(FileNotFoundError()), raising=False)
    assert probes.cpuinfo("flags") is None


@pytest.mark.parametrize(
    ("has", "asked", "warns"), [(False, "bf16", True), (True, "bf16", False), (False, "no", False)]
)
def test_bfloat16_that_is_slow_is_warned_of(has, asked, warns, monkeypatch, caplog):
    monkeypatch.setattr(precision, "cpu_bfloat16", lambda: has)
    with caplog.at_level(logging.WARNING):
        precision.MixedPrecision(torch.device("cpu"), asked)
    assert ("this processor has no instructions for bfloat16" in caplog.text) == warns


@pytest.mark.parametrize(("has", "faster"), [(True, "bf16=True is faster"), (False, "float32 is faster")])
def test_the_first_lines_of_a_run_have_it(has, faster, make_trainer, monkeypatch, caplog):
    monkeypatch.setattr(overview, "cpu_bfloat16", lambda: has)
    with caplog.at_level(logging.INFO, "transformers.trainer"):
        make_trainer(use_cpu=True, max_steps=1).train()
    assert f"  Precision = as the model's weights; {faster}" in caplog.text
