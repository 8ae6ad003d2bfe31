"""run_glue.py on the simulated mps device has the losses of the CPU."""

import contextlib
import json

import pytest
import run_glue as script
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.conftest import on_device

pytestmark = pytest.mark.integration  # whole scripts

# These cover two evaluations, a regression and pairs; the others add nothing.
TASKS = [
    *("mnli", "stsb", "mrpc"),
    *(pytest.param(task, marks=pytest.mark.acceptance) for task in ("cola", "sst2", "qqp", "qnli", "rte", "wnli")),
]
LOSSES = ("train_loss", "eval_loss")
STEPS = 12


@pytest.fixture
def train(tmp_path, monkeypatch, capfd):
    """Runs the script on a device. Returns the losses and the device's report."""

    def run(device, *arguments):
        folder = tmp_path / device
        # The CPU multiplies attention out, as mps does: its own kernel rounds differently, which adds up.
        attention = sdpa_kernel(SDPBackend.MATH) if device == "cpu" else contextlib.nullcontext()
        with on_device(device) as mps, attention:
            words = [*arguments, "--output_dir", str(folder), *(["--use_cpu"] if device == "cpu" else [])]
            assert script.main(words) == 0, capfd.readouterr().err
            report = mps.report() if mps else None
        results = json.loads((folder / "all_results.json").read_text())
        return {name: value for name, value in results.items() if name.startswith(LOSSES)}, report

    return run


@pytest.mark.parametrize("task", TASKS)
def test_task_has_losses_of_the_cpu(train, task):
    arguments = ["--task_name", task, "--embedded", "--max_steps", str(STEPS)]
    expected, _ = train("cpu", *arguments)
    losses, report = train("mps", *arguments)
    assert losses == pytest.approx(expected, abs=1e-4)
    assert len(losses) == (3 if task == "mnli" else 2)
    assert report.fell_back == ()
    assert report.operator_calls > STEPS * 100  # the model was there
