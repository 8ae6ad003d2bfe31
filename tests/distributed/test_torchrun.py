"""Under torchrun itself: what becomes of a process that dies, and of a signal."""

import os
import re
import signal
import subprocess
import sys

import pytest
import torch

from tests import HUNG_AFTER, ROOT
from tests.conftest import assert_same_weights
from tests.distributed.launch import environment, free_port

pytestmark = pytest.mark.integration
GLUE = ROOT / "examples" / "text-classification" / "run_glue.py"


def torchrun(*arguments: str) -> subprocess.Popen[str]:
    """Two processes on this machine."""
    variables = {
        name: value
        for name, value in environment(0, 2, 0).items()
        if not name.startswith(("RANK", "LOCAL_", "WORLD_SIZE", "MASTER_"))
    }
    port = str(free_port())
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", port]
    return subprocess.Popen(
        [*command, *arguments], env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def restarted(folder, name: str, *options: str) -> tuple[int, str]:
    process = torchrun(*options, "-m", "tests.distributed.restarted", str(folder), name)
    output = process.communicate(timeout=HUNG_AFTER)[0]
    return process.returncode, output


def test_a_process_that_dies_ends_the_run_with_its_rank_named_and_a_restart_goes_on_exactly(tmp_path):
    for name, options in (("whole", ()), ("fails", ()), ("again", ("--max_restarts", "1"))):
        (tmp_path / name).mkdir()
        if name != "whole":
            (tmp_path / name / "marker").write_text("10")
        status, output = restarted(tmp_path / name, name, *options)
        assert status == (name == "fails"), output
        if name == "fails":
            assert re.search(r"rank\s*: 1 \(local_rank: 1\)\s+exitcode\s*: -9", output), output
    whole, again = (torch.load(tmp_path / name / f"{name}.pt") for name in ("whole", "again"))
    assert again["steps"] == whole["steps"] == 20
    assert_same_weights(again["weights"], whole["weights"])


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


def test_a_refusal_of_all_processes_is_one_line(tmp_path):
    process = torchrun(str(GLUE), "--task_name", "mrpc", "--output_dir", str(tmp_path), "--nonsense", "3")
    output = process.communicate(timeout=HUNG_AFTER)[0]
    assert output.count("'--nonsense' is neither a flag") == 1, output
