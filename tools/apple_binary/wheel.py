"""Downloads torch's wheel for Apple silicon from the package index, checks it, and reads it without installing."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from mps_trainer.tools.check.table import OPERATORS
from mps_trainer.utils.home import cache_folder

# The CPython that the wheel is made for. The library with the kernels does not depend on it.
PYTHON = "3.11"
# pip also accepts every older macOS that this tag covers: torch's wheels are tagged 11.0 until 2.11 and 14.0 since.
PLATFORM = "macosx_26_0_arm64"

LIBRARY = "torch/lib/libtorch_cpu.dylib"
TABLE = f"torchgen/{OPERATORS}"


class WheelError(Exception):
    """The wheel cannot be downloaded, or its digests are wrong."""


class IndexUnreachableError(WheelError):
    """The package index did not answer."""


def default_cache() -> Path:
    """Returns the folder for downloaded wheels, in the user's cache."""
    return (cache_folder() or Path(".cache")) / "apple-wheels"


def download(version: str, cache: Path) -> Path:
    """Returns the path of torch's wheel of `version` in `cache`, downloaded if it is not there yet.

    pip downloads it from the index that it is configured for and compares it with the digest that the index gives.
    """
    if re.fullmatch(r"\d+\.\d+\.\d+", version) is None:
        raise WheelError(f"{version!r} is not the version of a torch release. Give one such as 2.15.0.")
    if (found := _downloaded(version, cache)) is not None:
        return found
    cache.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    with tempfile.TemporaryDirectory(dir=cache) as folder:  # so that a wheel in the cache is a whole one
        command += ["--platform", PLATFORM, "--python-version", PYTHON, "--dest", folder, f"torch=={version}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0 and (found := _downloaded(version, Path(folder))) is not None:
            return found.replace(cache / found.name)
    reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
    # pip lists the versions that the index has, or "none" when no index answered.
    has_others = "No matching distribution" in done.stderr and "from versions: none" not in done.stderr
    kind = WheelError if has_others else IndexUnreachableError
    raise kind(f"torch {version} for Apple silicon was not downloaded: {reason}")


def _downloaded(version: str, cache: Path) -> Path | None:
    return max(cache.glob(f"torch-{version}-*macosx*arm64.whl"), default=None)


class Wheel:
    """Reads members of a wheel and checks them against the digests in its RECORD."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._archive = zipfile.ZipFile(path)
        except zipfile.BadZipFile as error:
            raise WheelError(f"{path} is not a wheel: {error}. Delete it and run again.") from error
        records = [name for name in self._archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/RECORD", name)]
        if len(records) != 1:
            raise WheelError(f"{path} has {len(records)} RECORD files and should have one. Delete it and run again.")
        rows = csv.reader(io.StringIO(self._archive.read(records[0]).decode("utf-8")))
        self._digests = {row[0]: row[1] for row in rows if len(row) == 3 and row[1]}

    @property
    def sha256(self) -> str:
        """The digest of the whole file, as the package index shows it."""
        digest = hashlib.sha256()
        with self.path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()

    def read(self, name: str) -> bytes:
        """Returns the content of a member. Raises WheelError if its digest is not the one in RECORD."""
        if name not in self._digests:
            raise WheelError(f"{self.path.name} has no {name}, or no digest for it.")
        content = self._archive.read(name)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        if self._digests[name] != f"sha256={digest}":
            raise WheelError(
                f"{name} in {self.path} differs from RECORD: it is damaged. Delete the wheel and run again."
            )
        return content
