"""Where neither the hub nor data can be had. What else ends in one line is in tests/bad_input/."""

import os
import subprocess
import sys
import time

from .conftest import EXAMPLE, ROOT


def test_without_hub_data_or_embedded_one_line_names_the_choices_without_retries(tmp_path):
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "home")}
    environment["PYTHONPATH"] = str(ROOT)
    command = ["--model_name_or_path", "google-bert/bert-base-cased", "--task_name", "mrpc", "--do_train"]
    start = time.monotonic()
    process = subprocess.run(
        [sys.executable, "run_glue.py", *command, "--output_dir", str(tmp_path / "out")],
        cwd=EXAMPLE,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 2
    assert len(process.stderr.strip().splitlines()) == 1, process.stderr
    for choice in ("hub", "--data_dir", "--train_file", "--embedded"):
        assert choice in process.stderr
    assert not (tmp_path / "out").exists()
    # 4 seconds where nothing else runs; a client of the hub that tries again and again waits for 25 and more
    assert time.monotonic() - start < 20
