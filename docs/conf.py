"""Sphinx configuration. Build with `sphinx-build -W docs docs/_build/html`."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]

from mps_trainer.version import __version__  # noqa: E402

project = "mps_trainer"
author = "the mps_trainer authors"
copyright = author
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "arguments_table",
    "commands_table",
    "house",
    "selftests",
]
exclude_patterns = ["_build", "_ext", "selftests"]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_search_scorer = str(HERE / "_static" / "scorer.js")
# Output and diffs are read, not pasted.
copybutton_selector = "div:not(.highlight-text):not(.highlight-diff) > div.highlight > pre"
smartquotes = False  # a flag begins with two hyphens
html_title = f"mps_trainer {__version__}"

myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]
autodoc_typehints = "signature"
default_role = "code"  # docstrings put names between single backticks
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
