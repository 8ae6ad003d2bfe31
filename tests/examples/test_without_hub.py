"""run_glue.py without a hub and without data. tests/bad_input has the other refusals."""

import contextlib
import os
import socket
import subprocess
import sys
import threading

import pytest

from tests import HUNG_AFTER

from .conftest import EXAMPLE, ROOT


@pytest.fixture
def closed_hub():
    """Serves an address that ends every connection at once. Yields it and the list of connections."""
    came: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def end_connections():
            with contextlib.suppress(OSError):
                while True:
                    connection, address = server.accept()
                    came.append(address)
                    connection.close()

        threading.Thread(target=end_connections, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", came


@pytest.mark.integration
def test_unreachable_hub_is_one_line_without_retries(tmp_path, closed_hub):
    endpoint, came = closed_hub
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    command = ["--model_name_or_path", "google-bert/bert-base-cased", "--task_name", "mrpc", "--do_train"]
    process = subprocess.run(
        [sys.executable, "run_glue.py", *command, "--output_dir", str(tmp_path / "out")],
        cwd=EXAMPLE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=HUNG_AFTER,
    )
    assert process.returncode == 2
    assert len(process.stderr.strip().splitlines()) == 1, process.stderr
    for choice in ("hub", "--data_dir", "--train_file", "--embedded"):
        assert choice in process.stderr
    assert not (tmp_path / "out").exists()
    assert 1 <= len(came) <= 2  # the hub's own client tries five times, waiting longer each time
