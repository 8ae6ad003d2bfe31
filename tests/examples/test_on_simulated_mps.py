"""The example on the simulated mps device, without one MPS flag, against the same run on the CPU."""

import contextlib
import gc
import json

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.conftest import on_device

pytestmark = pytest.mark.integration  # whole scripts

# a regression, two evaluations, pairs; the others have nothing of their own
TASKS = [
    *("mnli", "stsb", "mrpc"),
    *(pytest.param(task, marks=pytest.mark.acceptance) for task in ("cola", "sst2", "qqp", "qnli", "rte", "wnli")),
]
LOSSES = ("train_loss", "eval_loss")
STEPS = 12


@pytest.fixture
def train(tmp_path, monkeypatch, capfd):
    """Runs the script on a device with its own folder for results; gives the losses and the device's report."""

    def run(device, *arguments):
        import run_glue as script

        folder = tmp_path / device
        # Attention by product, softmax and product, as mps trains it; the CPU's own kernel rounds otherwise, and
        # after a hundred steps that is another run.
        attention = sdpa_kernel(SDPBackend.MATH) if device == "cpu" else contextlib.nullcontext()
        with on_device(device) as mps, attention:
            words = [*arguments, "--output_dir", str(folder), *(["--use_cpu"] if device == "cpu" else [])]
            assert script.main(words) == 0, capfd.readouterr().err
            report = mps.report() if mps else None
        results = json.loads((folder / "all_results.json").read_text())
        return {name: value for name, value in results.items() if name.startswith(LOSSES)}, report

    return run


@pytest.mark.parametrize("task", TASKS)
def test_a_task_trains_to_the_losses_of_the_cpu(train, task):
    arguments = ["--task_name", task, "--embedded", "--max_steps", str(STEPS)]
    expected, _ = train("cpu", *arguments)
    losses, report = train("mps", *arguments)
    assert losses == pytest.approx(expected, abs=1e-4)
    assert len(losses) == (3 if task == "mnli" else 2)
    assert report.fell_back == ()
    assert report.operator_calls > STEPS * 100  # the model was there


def test_running_out_of_memory_ends_in_one_line(tmp_path, capfd):
    import run_glue as script

    gc.collect()
    with on_device("mps", memory="8MB"):
        words = ["--task_name", "mrpc", "--embedded", "--output_dir", str(tmp_path / "out")]
        status = script.main([*words, "--per_device_train_batch_size", "128", "--disable_tqdm", "true"])
    lines = [line for line in capfd.readouterr().err.splitlines() if "Warning" not in line]
    assert status == 2
    assert lines[-1].startswith("run_glue.py: error: mps ran out of memory in training in step 1. Held: tensors ")
    assert "What to do: (1) auto_find_batch_size=True, or per_device_train_batch_size=64" in lines[-1]
    assert not any("Traceback" in line for line in lines)
