"""Tests which machines can run a launch."""

import re
from dataclasses import replace

import pytest

from mps_trainer import MachineFacts
from mps_trainer.launching.processes import check_machine
from mps_trainer.launching.settings import DEFAULTS
from tests.conftest import refusal
from tests.devices.machines import mac

MAC = mac("15.5", "2.13.0")
PC = MachineFacts(torch_version="2.13.0")
GPUS = replace(PC, cuda_built=True, cuda_count=2)
ON_CPU = {"ACCELERATE_USE_CPU": "true"}


@pytest.mark.parametrize(
    ("facts", "settings", "kind"),
    [
        (replace(MAC, environment=ON_CPU), {"device": "cpu", "num_processes": 2}, "cpu"),
        (MAC, {"device": "mps"}, "mps"),
        (PC, {"num_processes": 8}, "cpu"),
        (GPUS, {"device": "cuda", "num_processes": 2}, "cuda"),
        (GPUS, {"device": "auto", "num_processes": 2}, "cuda"),
        # a flag or the shell overrides the file, which names a GPU
        (replace(GPUS, environment=ON_CPU), {"device": "cuda", "num_processes": 4}, "cpu"),
    ],
)
def test_check_machine_takes_what_the_machine_can_do(facts, settings, kind):
    assert check_machine({**DEFAULTS, **settings}, facts).type == kind


@pytest.mark.parametrize(
    ("facts", "settings", "says"),
    [
        (MAC, {"num_processes": 2}, "2 processes on mps. A Mac has one GPU"),
        (MAC, {"device": "mps", "num_processes": 2}, "2 processes on mps. A Mac has one GPU"),
        (GPUS, {"num_processes": 3}, r"3 processes take one cuda device each.*has 2\."),
    ],
)
def test_check_machine_refuses_more_processes_than_devices(facts, settings, says):
    assert re.match(says, refusal(check_machine, {**DEFAULTS, **settings}, facts))
