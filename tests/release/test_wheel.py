"""A wheel built from the sdist, and an editable install, used outside of the checkout."""

import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from mps_trainer.version import __version__
from tests import HUNG_AFTER, ROOT
from tests.cli.test_example import files_of

FILES = ["setup.py", "setup.cfg", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md"]
PUBLISHED = ["CITATION.cff", "constraints.txt", "mps_trainer", "examples", "tests", "docs", ".ci"]
BUILD = "import sys, setuptools.build_meta as backend; print(getattr(backend, sys.argv[1])(sys.argv[2]))"


def run(*command: object, **settings) -> subprocess.CompletedProcess:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=HUNG_AFTER, **settings
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """Returns a folder with links to the repository's files, so that a build leaves the repository as it is."""
    folder = tmp_path_factory.mktemp("built") / "checkout"
    folder.mkdir()
    for name in [*FILES, *PUBLISHED]:
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.fixture(scope="module")
def wheel(checkout):
    """The wheel that the sdist gives, as `python -m build` makes both."""
    folder = checkout.parent
    run(sys.executable, "-c", BUILD, "build_sdist", folder, cwd=checkout)
    with tarfile.open(folder / f"mps_trainer-{__version__}.tar.gz") as archive:
        archive.extractall(folder / "unpacked")
    run(sys.executable, "-c", BUILD, "build_wheel", folder, cwd=folder / "unpacked" / f"mps_trainer-{__version__}")
    return folder / f"mps_trainer-{__version__}-py3-none-any.whl"


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Runs the installed command in a folder of its own, where nothing leads back to the checkout."""
    folder = tmp_path_factory.mktemp("elsewhere")
    target = folder / "target"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    run(*pip, "--target", target, wheel, cwd=folder)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environ |= {"PYTHONPATH": str(target), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    where = run(sys.executable, "-c", "import mps_trainer; print(mps_trainer.__file__)", cwd=folder, env=environ)
    assert Path(where.stdout.strip()).parent == target / "mps_trainer"

    def command(*words: object) -> subprocess.CompletedProcess:
        return run(sys.executable, target / "bin" / "mps-trainer", *words, cwd=folder, env=environ)

    command.folder = folder
    return command


def test_what_is_built_has_the_package_its_data_the_examples_and_what_an_index_shows(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = Parser().parsestr(archive.read(f"mps_trainer-{__version__}.dist-info/METADATA").decode())
    package = {f"mps_trainer/{name}" for name in files_of(ROOT / "mps_trainer")}
    examples = {f"mps_trainer/_examples/{name}" for name in files_of(ROOT / "examples")}
    pages = {f"mps_trainer/_docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    assert names == package | examples | pages
    assert {"mps_trainer/py.typed", "mps_trainer/tools/simulator/csrc/device.cpp"} <= names

    assert (metadata["Name"], metadata["Version"]) == ("mps_trainer", __version__)
    assert (metadata["License-Expression"], metadata["License-File"]) == ("Apache-2.0", "LICENSE")
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload().startswith("# mps_trainer")

    with tarfile.open(wheel.parent / f"mps_trainer-{__version__}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"CHANGELOG.md", "CITATION.cff", "constraints.txt", "tests/conftest.py", "docs/index.md", ".ci/run"}
    assert wanted <= names
    assert not [name for name in names if "__pycache__" in name or "/." in name]


def test_an_example_copied_out_of_the_installation_trains_by_it(installed):
    """On Linux on the simulated device, which is compiled from the sources that are installed."""
    installed("example", "text-classification", "mine")
    assert files_of(installed.folder / "mine") == files_of(ROOT / "examples" / "text-classification")
    how = "simulate" if sys.platform == "linux" else "launch"
    options = ["--json", "report.json"] if how == "simulate" else ["--cpu"]
    train = ["--task_name", "mrpc", "--embedded", "--do_train", "--max_steps", "2", "--max_train_samples", "32"]
    done = installed(how, *options, "mine/run_glue.py", *train, "--output_dir", "out")
    assert (installed.folder / "out" / "model.safetensors").is_file()
    if how == "simulate":
        assert "Training on mps" in done.stdout
        assert json.loads((installed.folder / "report.json").read_text())["exit_status"] == 0


SCRIPT = """\
from mps_trainer import Trainer, TrainingArguments

rate: float = TrainingArguments(output_dir="out").learning_rate
rates: str = Trainer.get_learning_rates
"""


@pytest.fixture(scope="module")
def environment(checkout) -> Path:
    """Returns the Python of a new environment with the editable install alone: torch is not needed for types."""
    run(sys.executable, "-c", BUILD.replace("sys.argv[2]", "sys.argv[2], {}"), "build_editable", "..", cwd=checkout)
    (wheel,) = checkout.parent.glob("*.editable-*.whl")
    folder = checkout.parent / "environment"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    return python


@pytest.mark.integration
@pytest.mark.parametrize(
    ("checker", "options", "count"),
    [
        ("mypy", ["--no-incremental", "--python-executable"], "Found 1 error"),
        ("pyright", ["--pythonpath"], "1 error,"),
    ],
)
def test_a_type_checker_knows_the_types_of_an_editable_install(checker, options, count, environment, tmp_path):
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed; it is in the extra dev")
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, "-m", checker, *options, str(environment), "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HUNG_AFTER)
    (error,) = (line for line in done.stdout.splitlines() if "error: " in line)
    assert "script.py:4:" in error
    assert "list[float]" in done.stdout
    assert count in done.stdout
