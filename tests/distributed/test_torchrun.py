"""Under torchrun itself: what becomes of a process that dies, and of a signal."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests import HUNG_AFTER, ROOT
from tests.distributed.launch import free_port

pytestmark = pytest.mark.integration
GLUE = ROOT / "examples" / "text-classification" / "run_glue.py"


def torchrun(*arguments: str) -> subprocess.Popen[str]:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    port = str(free_port())
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", port]
    return subprocess.Popen(
        [*command, *arguments], env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


TRAINS = """
import pathlib, sys
from tests.faults.training import train
train("mps_trainer", pathlib.Path(sys.argv[1]), "plain", "cpu")
"""


def test_a_run_of_which_a_process_dies_is_started_again_and_goes_on_exactly(tmp_path):
    (tmp_path / "train.py").write_text(TRAINS)
    outcomes = []
    for name in ("whole", "killed"):
        folder = tmp_path / name
        folder.mkdir()
        process = torchrun("--max_restarts", "1", str(tmp_path / "train.py"), str(folder))
        if name == "killed":
            while process.poll() is None and not any(folder.glob("checkpoint-*")):
                time.sleep(0.01)
            psutil.Process(process.pid).children()[-1].kill()
        output = process.communicate(timeout=HUNG_AFTER)[0]
        assert process.returncode == 0, output
        assert ("exitcode: -9" in output) == (name == "killed"), output
        outcomes.append(json.loads((folder / "outcome.json").read_text()))
    assert outcomes[0] == outcomes[1]


def test_a_signal_to_the_launcher_saves_once_and_says_how_to_go_on(tmp_path):
    arguments = [
        *(str(GLUE), "--task_name", "mrpc", "--embedded", "--do_train", "--use_cpu"),
        *("--output_dir", str(tmp_path / "out"), "--num_train_epochs", "20", "--save_strategy", "no"),
        *("--logging_steps", "1", "--disable_tqdm", "true"),
    ]
    process = torchrun(*arguments)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("{'loss'") and process.poll() is None and not any("SIGTERM" in line for line in lines):
            process.send_signal(signal.SIGTERM)
            lines.append("SIGTERM sent\n")
    process.wait(timeout=HUNG_AFTER)
    output = "".join(lines)
    saved = [name for name in os.listdir(tmp_path / "out") if name.startswith("checkpoint-")]
    assert len(saved) == 1, output
    assert output.count("and saved") == 1, output
    assert f"--nproc_per_node 2 {GLUE}" in output
    assert f"--resume_from_checkpoint {tmp_path / 'out' / saved[0]}" in output
