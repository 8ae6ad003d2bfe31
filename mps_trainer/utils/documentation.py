"""Finds the pages of the documentation that messages refer to."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def page(name: str, package: Path = PACKAGE) -> str:
    """Returns where the reader can open a page: its path in a clone, its address, or its file in the installation.

    A published wheel has the address in its metadata: setup.py writes it. Every wheel has a copy of the pages.

    Args:
        name: the file in `docs/` without its suffix.
        package: the folder of the package.
    """
    if (package.parent / "docs" / f"{name}.md").is_file():
        return f"docs/{name}.md"
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        urls = importlib.metadata.metadata("mps_trainer").get_all("Project-URL") or []
        if address := dict(url.split(", ", 1) for url in urls).get("Documentation"):
            return f"{address.replace('/tree/', '/blob/')}/{name}.md"
    path = str(package / "_docs" / f"{name}.md")
    home = os.path.expanduser("~")
    return path.replace(home, "~", 1) if path.startswith(home + os.sep) else path  # a report is shown to others
