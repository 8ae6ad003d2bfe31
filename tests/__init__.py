import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HUNG_AFTER = 600  # seconds until a process is taken for hung; a busy machine needs a fraction of that


def installed_torch() -> tuple[int, int]:
    """Returns major and minor version of torch, for tests of what one release does."""
    major, minor = version("torch").split(".")[:2]
    return int(major), int(minor)


def run_python(*words: object, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs Python on this checkout in a process of its own, without a hub, and returns how it ended."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **variables}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=HUNG_AFTER)


def run_with_two_workers(start_method: str, *words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs a script with two worker processes, started by the default method, or with "spawn" as on a Mac."""
    spawned, variables = cwd / "spawned", {}
    if start_method == "spawn":
        variables = {
            "PYTHONPATH": os.pathsep.join([str(ROOT / "tests" / "spawn"), str(ROOT)]),
            "SPAWNED": str(spawned),
        }
    spawned.write_text("")
    done = run_python(*words, "--dataloader_num_workers", 2, cwd=cwd, **variables)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (len(spawned.read_text().splitlines()) >= 2) == (start_method == "spawn")
    return done
