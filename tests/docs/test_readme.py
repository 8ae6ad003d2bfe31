"""README is short, its program runs as pasted, and what it says of Apple hardware stands above the figures."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from .pages import ROOT, all_blocks

README = (ROOT / "README.md").read_text(encoding="utf-8")
# Python runs this when it starts: a connection to another machine ends the program.
NO_NETWORK = """\
import socket


def refused(self, address):
    raise SystemExit(f"README's example connects to {address}")


socket.socket.connect = socket.socket.connect_ex = refused
"""


def test_readme_is_short():
    assert len(README.splitlines()) <= 110


@pytest.mark.integration
def test_readme_example_runs_offline(tmp_path):
    (example,) = (block for block in all_blocks("python") if block.page == "README.md")
    (tmp_path / "sitecustomize.py").write_text(NO_NETWORK)
    (tmp_path / "pasted.py").write_text(example.text)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "HF_HOME": str(tmp_path / "empty")}
    done = subprocess.run(
        [sys.executable, "pasted.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    loss = re.search(r"'eval_loss': ([\d.]+)", done.stdout)
    assert loss is not None, done.stdout
    assert float(loss[1]) < 0.3  # it learns: a model that guesses has 0.69
    assert (tmp_path / "first-run" / "report.html").is_file()


def test_readme_says_that_figures_are_not_of_apple_hardware():
    above = README.split("\n<!-- benchmarks -->\n")[0].rstrip().split("\n\n")[-1]
    assert above.endswith("**Nothing here was measured on Apple hardware.**")
    before = README.split("Nothing here was measured on Apple hardware")[0]
    prose = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", before, flags=re.DOTALL)
    assert re.findall(r"\d+(?:\.\d+)? ?(?:%|times|ms\b|seconds|x faster)|\d+\.\d{2}", prose) == ["3.10"]  # Python's
