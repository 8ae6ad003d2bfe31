"""A checkout to build from."""

from pathlib import Path

import pytest

from tests import ROOT

FILES = ["setup.py", "setup.cfg", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md"]
PUBLISHED = ["CITATION.cff", "constraints.txt", "mps_trainer", "examples", "tests", "docs", ".ci"]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """Returns a folder with links to the repository's files, so that a build leaves the repository as it is."""
    folder = tmp_path_factory.mktemp("built") / "checkout"
    folder.mkdir()
    for name in [*FILES, *PUBLISHED]:
        (folder / name).symlink_to(ROOT / name)
    return folder
