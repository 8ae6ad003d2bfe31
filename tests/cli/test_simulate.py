"""`mps-trainer simulate`, as a user runs it."""

import json
import signal
import subprocess
import sys
import time

import pytest

from tests import HUNG_AFTER

from .test_doctor import run

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("built")]  # a second run prints less


@pytest.fixture
def script(tmp_path):
    def write(text: str) -> str:
        (tmp_path / "train.py").write_text(text)
        return str(tmp_path / "train.py")

    return write


ON_MPS = """\
import sys
import torch
import helper  # beside the script
x = torch.ones(3, device="mps")
for _ in range(4): x = x * x
torch.ones(2 * 2**20, device="mps")
print(sys.argv[1:], __name__, torch.special.airy_ai(x).device, (x + helper.ONE).sum().item())
"""


def test_simulate_runs_a_script_as_python_does_and_reports_on_stderr_and_as_json(script, tmp_path):
    (tmp_path / "helper.py").write_text("ONE = 1\n")
    path = tmp_path / "report.json"
    options = "--fallback", "--memory", "16MB", "--json", str(path)
    result = run("simulate", *options, script(ON_MPS), "--flag", "value", "--json")
    assert result.stdout == "['--flag', 'value', '--json'] __main__ mps:0 6.0\n", result.stderr
    assert "\nOn the simulated mps device (torch " in result.stderr
    assert "train.py:7: print(sys.argv" in result.stderr
    assert "once on the CPU: aten::special_airy_ai" in result.stderr  # the fallback is set before torch is loaded
    report = json.loads(path.read_text())
    assert result.returncode == report["exit_status"] == 0
    calls = {operator["name"]: operator["calls"] for operator in report["operators"]}
    assert calls["aten::mul.Tensor"] == 4
    assert report["places"][0]["line"] == 7


TRAINS_AND_FAILS = """\
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
data = [{"input_ids": [1, 2, 3], "labels": 0}] * 8
args = TrainingArguments(output_dir="out", max_steps=2, report_to=[], save_strategy="no")
trainer = Trainer(BertForSequenceClassification(config), args, train_dataset=data)
trainer.train()
print("trained on", trainer.model.device)
try:
    torch.special.airy_ai(torch.ones(3, device="mps"))
except NotImplementedError:
    torch.ones(32 * 2**20, device="mps")
"""


def test_simulate_of_a_script_that_trains_and_runs_out_of_memory_has_its_traceback_and_a_report(script, tmp_path):
    result = run("simulate", "--memory", "64MB", script(TRAINS_AND_FAILS), cwd=tmp_path)
    assert result.returncode == 1
    assert "trained on mps:0" in result.stdout, result.stderr
    trace, _, report = result.stderr.partition("On the simulated mps device")
    assert trace.count('File "') == 2  # of both errors
    assert "line 12" in trace
    assert "MPS backend out of memory" in trace
    assert "operators run" in report
    assert "64.0 MiB recommended" in report


def test_simulate_of_an_interrupted_script_reports_without_a_traceback(script):
    text = "import time\nprint('started', flush=True)\ntime.sleep(60)\n"
    # ignored in what a shell runs in the background, and what is ignored stays so in a new process
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, "-m", "mps_trainer", "simulate", script(text)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    signal.signal(signal.SIGINT, before)
    assert process.stdout.readline() == "started\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=HUNG_AFTER)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "On the simulated mps device" in errors
