"""`mps-trainer env`: what goes into an issue, and what does not."""

import os
import re
from dataclasses import replace

import pytest

from mps_trainer import __version__, cli
from mps_trainer.cli.env import listing
from mps_trainer.devices.facts import PACKAGES
from tests.devices.diagnosed import FACTS, FALLBACK, INSTALLED
from tests.devices.machines import MACHINES, mac


def test_this_machine(capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "false")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)  # set where torch is built for CUDA
    monkeypatch.setenv("HOME", os.path.dirname(os.path.dirname(cli.__file__)))
    assert cli.main(["env"]) == 0
    printed = capsys.readouterr().out
    assert f"- mps_trainer: `{__version__}`" in printed
    for package in PACKAGES:
        assert re.search(rf"^- {package}: `(\d|not installed)", printed, re.MULTILINE)
    assert "- variables: `ACCELERATE_USE_CPU=false`" in printed
    assert "hf_secret" not in printed
    assert os.environ["HOME"] not in printed


@pytest.mark.parametrize("name", FACTS)
def test_it_pastes_as_a_list_of_code(name):
    lines = listing(FACTS[name]).splitlines()
    assert len({line.partition(":")[0] for line in lines}) == len(lines) == len(PACKAGES) + 7
    for line in lines:
        assert re.fullmatch(r"- [\w ]+: `[^`]+`", line)


def test_a_mac():
    facts = mac("15.5", "2.13.0", chip="Apple M3 Pro", model="Mac15,6", memory_bytes=18 * 1024**3, packages=INSTALLED)
    printed = listing(replace(facts, environment={FALLBACK: "1"}, python_version="3.12.4"))
    assert "- machine: `Apple M3 Pro, Mac15,6, 18.0 GiB of memory`" in printed
    assert "- Python: `3.12.4, arm64, /opt/homebrew/bin/python3`" in printed
    assert "- system: `macOS 15.5`" in printed
    assert "- device: `mps: accelerator='auto' takes the first usable" in printed
    assert f"- variables: `{FALLBACK}=1`" in printed


def test_rosetta_hides_the_chip_and_that_is_said():
    facts = replace(MACHINES["m2_rosetta_torch_missing"], chip="VirtualApple @ 2.50GHz", model="Mac14,2")
    printed = listing(facts)
    assert "Apple silicon, named VirtualApple @ 2.50GHz by Rosetta, Mac14,2" in printed
    assert "- device: `none. Nothing can be trained here" in printed
    assert "- findings: `error rosetta`" in printed
