"""The workflow that readers copy, docs/simulated-mps.yml, installs this package from a repository or a clone."""

import os
import shutil
import subprocess
import sys
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest
import yaml

from mps_trainer.version import __version__
from tests import HUNG_AFTER, ROOT

WORKFLOW = yaml.safe_load((ROOT / "docs" / "simulated-mps.yml").read_text(encoding="utf-8"))
STEP = next(
    step["run"]
    for step in WORKFLOW["jobs"]["simulated-mps"]["steps"]
    if "mps_trainer" in step.get("run", "") and step["run"].startswith("pip install")
)
SOURCES = ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE", "mps_trainer", "docs", "examples")


def run(*words: object, **settings) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=HUNG_AFTER, **settings)


def step(address: str) -> subprocess.CompletedProcess[str]:
    """Runs the step as GitHub does, with a stand-in for pip that prints each argument on its own line."""
    environ = {**os.environ, "MPS_TRAINER": address}
    return run("bash", "-ec", f"pip() {{ printf '%s\\n' \"$@\"; }}\n{STEP}", env=environ)


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    """Returns a repository with the files of this package."""
    folder = tmp_path_factory.mktemp("of") / "mps_trainer"
    folder.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        copy(ROOT / name, folder / name)
    git = ("git", "-C", folder, "-c", "user.name=n", "-c", "user.email=n@example.org")
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "Start"]):
        assert run(*git, *words).returncode == 0
    return folder


@pytest.mark.parametrize("kind", ["git+file", "file"])
def test_package_is_installed_from_its_repository_or_a_clone(repository, tmp_path, kind):
    done = step(f"{kind}://localhost{repository}")
    install, package, *others = done.stdout.splitlines()
    assert (install, others) == ("install", ["pytest", "-r", "requirements.txt"])
    offline = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--no-compile"]
    pip = run(sys.executable, "-m", "pip", install, *offline, "--target", tmp_path / "target", package, cwd=tmp_path)
    assert pip.returncode == 0, pip.stderr
    assert list((tmp_path / "target" / "mps_trainer" / "tools" / "simulator" / "csrc").glob("*.cpp"))
    (found,) = (tmp_path / "target").glob("mps_trainer-*.dist-info")
    metadata = PathDistribution(found).metadata
    assert metadata["Version"] == __version__
    assert "simulator" in metadata.get_all("Provides-Extra")


def test_address_that_is_not_set_is_named_in_one_line():
    done = step("")
    assert done.returncode != 0
    assert done.stdout == ""
    assert done.stderr.strip().endswith("MPS_TRAINER: is not set, see above")
