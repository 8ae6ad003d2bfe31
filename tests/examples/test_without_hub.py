"""run_glue.py without a hub and without data. tests/bad_input has the other refusals."""

import contextlib
import socket
import threading

import pytest

from tests import run_python

from .conftest import EXAMPLE


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
    words = ["--model_name_or_path", "google-bert/bert-base-cased", "--task_name", "mrpc", "--do_train"]
    hub = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
    process = run_python("run_glue.py", *words, "--output_dir", tmp_path / "out", cwd=EXAMPLE, **hub)
    assert process.returncode == 2
    assert len(process.stderr.strip().splitlines()) == 1, process.stderr
    for choice in ("hub", "--data_dir", "--train_file", "--embedded"):
        assert choice in process.stderr
    assert not (tmp_path / "out").exists()
    assert 1 <= len(came) <= 2  # the hub's own client tries five times, waiting longer each time
