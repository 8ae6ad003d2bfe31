"""Finds the pages of the documentation that messages refer to."""

from __future__ import annotations

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
    if (address := _address()) is not None:
        return f"{address}/{name}.md"
    path = str(package / "_docs" / f"{name}.md")
    home = os.path.expanduser("~")
    return path.replace(home, "~", 1) if path.startswith(home + os.sep) else path  # a report is shown to others


def _address() -> str | None:
    """Returns the address of the folder of the pages, None if the installed metadata has none."""
    try:
        found = importlib.metadata.metadata("mps_trainer").get_all("Project-URL") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    urls = dict(url.split(", ", 1) for url in found)
    return urls["Documentation"].replace("/tree/", "/blob/") if "Documentation" in urls else None
