"""Compiles the simulated device, once per torch version and per change of its source, into the user's cache folder."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from ...errors import MisconfigurationException
from ...utils.home import cache_folder
from ...utils.installation import how_to_install

SOURCES = Path(__file__).parent / "csrc"
MODULE = "mps_simulator"


class SimulatorUnavailableError(MisconfigurationException):
    """This machine cannot run the simulated device. The message says why and what to do."""


def load_extension() -> ModuleType:
    """Returns the compiled device. The first call builds it (about a minute).

    Raises:
        SimulatorUnavailableError: on another system than Linux, with a torch for AMD's or Intel's GPUs, and without a
            compiler.
    """
    library = build_device()
    spec = importlib.util.spec_from_file_location(MODULE, library)
    assert spec is not None
    assert spec.loader is not None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise SimulatorUnavailableError(
            f"The simulated mps device cannot be loaded: {error}. Delete {library.parent} to build it again."
        ) from error
    return module


def build_device() -> Path:
    """Returns the library of the device. The first call compiles it. Raises as `load_extension` does."""
    check_machine()
    return built(SOURCES, MODULE)


def built(sources: Path, name: str) -> Path:
    """Returns the library of the C++ files in `sources`. The first call compiles it. Never imports torch."""
    library = _library(sources, name)
    if library in _failures:
        raise SimulatorUnavailableError(_failures[library])
    if not library.exists():
        try:
            import fcntl  # Windows has none

            library.parent.mkdir(parents=True, exist_ok=True)
            with (library.parent / "lock").open("w", encoding="utf-8") as handle:
                fcntl.flock(handle, fcntl.LOCK_EX)  # the system releases it when this process dies
                if not library.exists():  # another process may have built it while this one waited
                    _build(library, sources)
        except (SimulatorUnavailableError, OSError) as error:
            why = str(error)
            if isinstance(error, OSError):
                why = (
                    f"The simulated mps device cannot be built in {library.parent}: {error.strerror or error}. Set "
                    "MPS_TRAINER_CACHE to a folder that can be written."
                )
            _failures[library] = why
            raise SimulatorUnavailableError(why) from error
    return library


_failures: dict[Path, str] = {}  # builds that failed in this process and are not tried again


def torch_version() -> Any:
    """Returns the contents of `torch.version` without importing torch."""
    if "torch.version" in sys.modules:
        return sys.modules["torch.version"]
    return SimpleNamespace(**runpy.run_path(str(torch_folder() / "version.py")))


def torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise SimulatorUnavailableError("The simulated mps device needs torch: python -m pip install torch")
    return Path(spec.origin).parent


def check_machine() -> None:
    """Raises SimulatorUnavailableError where the device cannot or must not be simulated."""
    if platform.system() == "Darwin":
        raise SimulatorUnavailableError(
            "The mps device is not simulated on a Mac, which may have a real one. Run the script as it is, and "
            "`mps-trainer doctor` if training does not find the device."
        )
    if platform.system() != "Linux":
        raise SimulatorUnavailableError(
            f"The simulated mps device needs Linux, and this machine runs {platform.system()}. Use Linux, a Linux "
            "container, or WSL; `mps-trainer check` works everywhere."
        )
    version = torch_version()
    if getattr(version, "hip", None) or getattr(version, "xpu", None):
        raise SimulatorUnavailableError(
            f"The simulated mps device needs a CUDA or CPU build of torch, and this is {version.__version__}. Make "
            "a new environment and install torch there from the index of CPU builds: python -m pip install torch "
            "--index-url https://download.pytorch.org/whl/cpu"
        )


def _library(sources: Path, name: str) -> Path:
    """Returns the path of the library of this source for this torch and this Python."""
    version = torch_version()
    digest = hashlib.sha256(f"{version.git_version} {sys.version} {platform.machine()}".encode())
    for source in sorted(sources.iterdir()):
        digest.update(source.read_bytes())
    folder = f"{name.removeprefix('mps_')}-{version.__version__}-{digest.hexdigest()[:16]}"
    if (cache := cache_folder()) is None:
        raise SimulatorUnavailableError(
            "The simulated mps device is built in a cache folder, and this user has no home folder for one. Set "
            "MPS_TRAINER_CACHE to a folder that can be written."
        )
    return cache / folder / f"{name}.so"


def _build(library: Path, sources: Path) -> None:
    _check_tools()
    print(
        f"Building the simulated mps device for torch {torch_version().__version__}, once, which takes about a minute "
        "...",
        file=sys.stderr,
        flush=True,
    )
    start = time.monotonic()
    with tempfile.TemporaryDirectory(dir=library.parent, prefix="build-") as folder:
        _compile(sources, library.stem, Path(folder), library.parent / "build.log")
        os.replace(Path(folder) / library.name, library)
    print(f"Built in {time.monotonic() - start:.0f} s: {library.parent}", file=sys.stderr, flush=True)


def _check_tools() -> None:
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        raise SimulatorUnavailableError(
            f"The simulated mps device has to be compiled, and there is no C++ compiler ({compiler}). Install one, "
            f"for example with `apt-get install g++`. `mps-trainer check` needs none."
        )
    if shutil.which("ninja", path=_path()) is None:
        raise SimulatorUnavailableError(
            "The simulated mps device has to be compiled, and ninja is not installed. `mps-trainer check` needs none. "
            f"{how_to_install('ninja')}"
        )
    include = Path(sysconfig.get_paths()["include"])
    if not (include / "Python.h").exists():
        raise SimulatorUnavailableError(
            f"The simulated mps device has to be compiled, and Python's headers are not in {include}. Install them, "
            f"for example with `apt-get install python3-dev`, or use a Python that brings them."
        )


# Compiling takes place in a process of its own: torch's cpp_extension leaves state behind, takes a second to import,
# and a compiler's output belongs in a log.
_COMPILE = """
import shlex
import sys
from torch.utils import cpp_extension
# torch 2.15 gives the folder to the linker without quotes, so that a space in it ends the build
cpp_extension.TORCH_LIB_PATH = shlex.quote(cpp_extension.TORCH_LIB_PATH)
cpp_extension.load(name=sys.argv[1], sources=sys.argv[3:], build_directory=sys.argv[2], extra_cflags=["-O2"],
                   is_python_module=False, verbose=True)
"""


def _path() -> str:
    """Returns PATH with this Python's folder, where pip installs ninja, because its environment may be inactive."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def _compile(folder_of_sources: Path, name: str, folder: Path, log: Path) -> None:
    sources = [str(source) for source in sorted(folder_of_sources.glob("*.cpp"))]
    environment = dict(os.environ)
    environment["PATH"] = _path()
    environment["TORCH_EXTENSIONS_DIR"] = str(folder)
    command = [sys.executable, "-c", _COMPILE, name, str(folder), *sources]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    if result.returncode == 0:
        return
    output = result.stdout + result.stderr
    log.write_text(output, encoding="utf-8")
    errors = [line.strip() for line in output.splitlines() if "error: " in line.lower()]
    raise SimulatorUnavailableError(
        f"The simulated mps device could not be compiled: {errors[0] if errors else 'the compiler gave no reason'}. "
        f"It needs torch 2.13 to 2.15 and a compiler with C++20; the output of the compiler is in {log}."
    )
