"""The device is compiled once, where it can be; where it cannot, one line says why and what to do."""

import functools
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mps_trainer.tools.simulator import SimulatorUnavailableError, build
from tests import HUNG_AFTER
from tests.conftest import refusal

refused = functools.partial(refusal, build.load_extension, kind=SimulatorUnavailableError)

# The least that builds and can be imported.
TINY = """
#include <Python.h>
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "mps_simulator"};
PyMODINIT_FUNC PyInit_mps_simulator() { return PyModule_Create(&module); }
"""

LOAD = """
import pathlib, sys
from mps_trainer.tools.simulator import build
build.SOURCES = pathlib.Path(sys.argv[1])
print(build.load_extension().__file__)
"""


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """A folder for source files and a cache of its own; the machine is one that can build."""
    monkeypatch.setenv("MPS_TRAINER_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "csrc"
    folder.mkdir()
    monkeypatch.setattr(build, "SOURCES", folder)
    return folder


OBSTACLES = {
    "not simulated on a Mac": lambda patch, folder: patch.setattr(platform, "system", lambda: "Darwin"),
    "runs Windows": lambda patch, folder: patch.setattr(platform, "system", lambda: "Windows"),
    "needs a CUDA or CPU build of torch": lambda patch, folder: patch.setattr(torch.version, "hip", "6"),
    "a CUDA or CPU build of torch": lambda patch, folder: patch.setattr(torch.version, "xpu", "1", raising=False),
    "no C++ compiler (no-such-compiler)": lambda patch, folder: patch.setenv("CXX", "no-such-compiler"),
    "ninja is not installed": lambda patch, folder: patch.setattr(
        build.shutil, "which", lambda name, path=None: None if name == "ninja" else name
    ),
    "Python's headers are not in /none": lambda patch, folder: patch.setattr(
        build.sysconfig, "get_paths", lambda: {"include": "/none"}
    ),
    "Not a directory. Set MPS_TRAINER_CACHE": lambda patch, folder: patch.setenv(
        "MPS_TRAINER_CACHE", str(folder / "file")
    ),
}


@pytest.mark.parametrize("said", OBSTACLES)
def test_what_keeps_the_device_from_being_compiled_is_named(built, sources, monkeypatch, tmp_path, said):
    (tmp_path / "file").touch()
    OBSTACLES[said](monkeypatch, tmp_path)
    assert said in refused()


@pytest.mark.integration
def test_error_of_the_compiler_is_shown_and_its_log_kept(built, sources, capfd):
    (sources / "broken.cpp").write_text("int broken = ;\n")
    text = refused()
    assert "broken.cpp:1:14: error: expected primary-expression" in text
    log = Path(text.rsplit(" is in ", 1)[1].rstrip("."))
    assert "expected primary-expression" in log.read_text()
    assert [path.name for path in log.parent.iterdir() if path.name.startswith("build-")] == []
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith("Building the simulated mps device for torch")
    assert "Traceback" not in said.err


def test_damaged_library_says_what_to_delete(built, sources):
    library = build._library(build.SOURCES, build.MODULE)
    library.parent.mkdir(parents=True)
    library.write_bytes(b"not a library")
    assert f"Delete {library.parent}" in refused()


def test_source_and_torch_decide_where_it_belongs(sources, monkeypatch):
    first = build._library(build.SOURCES, build.MODULE)
    (sources / "a.cpp").write_text("// new")
    second = build._library(build.SOURCES, build.MODULE)
    monkeypatch.setattr(torch.version, "git_version", "another build")
    assert len({first, second, build._library(build.SOURCES, build.MODULE)}) == 3
    assert torch.__version__ in first.parent.name


@pytest.mark.integration
def test_two_processes_at_once_build_once(built, sources):
    (sources / "tiny.cpp").write_text(TINY)
    command = [sys.executable, "-c", LOAD, str(sources)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=HUNG_AFTER) for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert outputs[0][0] == outputs[1][0] == f"{build._library(build.SOURCES, build.MODULE)}\n"
    said = "".join(err for _, err in outputs)
    libraries = 2 if torch.version.cuda else 1  # the second takes CUDA out of the process
    assert said.count("Building the simulated mps device") == said.count("Built in") == libraries
    assert len(said.splitlines()) == 2 * libraries
    again = subprocess.run(command, capture_output=True, text=True, timeout=HUNG_AFTER)
    assert (again.stdout, again.stderr) == (outputs[0][0], "")


@pytest.mark.integration
def test_torch_in_a_folder_with_a_space_is_linked(monkeypatch, tmp_path):
    (tmp_path / "my Mac").mkdir()
    (tmp_path / "my Mac" / "torch").symlink_to(build.torch_folder())
    sources, made = tmp_path / "source files", tmp_path / "built here"
    sources.mkdir()
    made.mkdir()
    (sources / "nothing.cpp").write_text('extern "C" int nothing() { return 0; }\n')
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "my Mac"), prepend=os.pathsep)
    build._compile(sources, "nothing", made, tmp_path / "build.log")
    assert (made / "nothing.so").exists()
