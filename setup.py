"""Builds what setup.cfg cannot declare: examples and pages in the wheel, and a README whose links work elsewhere."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", ".*", "trainer_output")


class BuildWithExamples(build_py):
    """Copies examples/ and the pages of docs/ into the package, as `_examples` and `_docs`.

    An editable install has neither: it reads the folders themselves.
    """

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib, "mps_trainer", "_examples")
            shutil.rmtree(target, ignore_errors=True)  # of a build before, which may have had other files
            shutil.copytree(ROOT / "examples", target, ignore=LEFT_OUT)
            pages = Path(self.build_lib, "mps_trainer", "_docs")
            shutil.rmtree(pages, ignore_errors=True)
            pages.mkdir()
            for path in sorted((ROOT / "docs").glob("*.md")):
                shutil.copyfile(path, pages / path.name)


def published_at(repository: str, documentation: str = "") -> dict[str, object]:
    """Metadata that has to name where the repository and the published pages are, which no file in it does."""
    version = re.search(r'__version__ = "(.+)"', (ROOT / "mps_trainer" / "version.py").read_text(encoding="utf-8"))
    assert version is not None
    tag = f"v{version[1]}"
    return {
        "long_description": with_absolute_links((ROOT / "README.md").read_text(encoding="utf-8"), repository, tag),
        "project_urls": {
            "Source": repository,
            "Documentation": documentation or f"{repository}/blob/{tag}/docs/index.md",
            "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
            "Issues": f"{repository}/issues",
        },
    }


def with_absolute_links(text: str, repository: str, tag: str) -> str:
    """Links and pictures of a markdown text that are paths in the repository, as addresses of the files of a tag."""

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link[1] == "!" else "blob"
        return f"{link[1]}[{link[2]}]({repository}/{kind}/{tag}/{link[3]})"

    text = re.sub(r'(<img src=")(?![a-z]+:)', rf"\g<1>{repository}/raw/{tag}/", text)
    return re.sub(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)", absolute, text)


if __name__ == "__main__":
    # Set by the workflow that publishes. Whoever builds without it gets the README as it is.
    where = os.environ.get("MPS_TRAINER_REPOSITORY", "").rstrip("/")
    pages = os.environ.get("MPS_TRAINER_DOCUMENTATION", "")
    setup(cmdclass={"build_py": BuildWithExamples}, **(published_at(where, pages) if where else {}))
