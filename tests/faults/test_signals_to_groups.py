"""A terminal or a batch system sends a signal to a run and its workers at once."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests import HUNG_AFTER

SCRIPT = """
import sys
from mps_trainer import Trainer, TrainingArguments
from tests.conftest import Classifier, examples

if __name__ == "__main__":
    args = TrainingArguments(
        output_dir=sys.argv[1], use_cpu=True, max_steps=200_000, dataloader_num_workers=2, disable_tqdm=True,
        report_to="none", logging_steps=1, per_device_train_batch_size=1,
    )
    Trainer(Classifier(), args, train_dataset=examples(4000)).train()
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("signum", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, -signal.SIGINT)]
)
def test_run_is_saved_when_its_workers_get_the_signal_too(tmp_path, signum, status):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    run = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": os.getcwd(), "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    for line in run.stdout:  # until it trains
        if "loss" in line:
            break
    time.sleep(0.5)
    os.killpg(run.pid, signum)
    said, _ = run.communicate(timeout=HUNG_AFTER)
    assert "and saved" in said, said
    assert run.returncode == status
    assert [path.name[:11] for path in (tmp_path / "run").iterdir()] == ["checkpoint-"]
