"""Shell commands in README and the documentation use what exists."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import re
import shlex
from pathlib import Path

import pytest

from mps_trainer.cli import _parser

from ..examples.conftest import FOLDERS
from .pages import ROOT, Block, all_blocks, blocks_of

README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands(word: str) -> list[tuple[Block, list[str]]]:
    """The commands in which `word` is the script or program, as the words after it."""
    found = []
    of_examples = [block for folder in FOLDERS for block in blocks_of(folder / "README.md")]
    for block in [*all_blocks("bash"), *of_examples]:
        for line in block.text.splitlines():
            for command in line.split("&&"):
                words = shlex.split(command)
                index = next((i for i, w in enumerate(words) if w == word or w.endswith("/" + word)), None)
                if index is not None:
                    found.append((block, words[index:]))
    return found


@functools.cache
def flags_of(script: str) -> set[str]:
    """Flags that `--help` of an example lists."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        importlib.import_module(script.removesuffix(".py")).main(["--help"])
    return set(re.findall(r"--\w+", printed.getvalue()))


EXAMPLES = [found for name in ("run_glue.py", "cv_example.py", "run_lora.py") for found in commands(name)]


@pytest.mark.parametrize(("block", "words"), EXAMPLES, ids=[f"{block} {words[0]}" for block, words in EXAMPLES])
def test_flags_of_the_examples_exist(block, words):
    used = {word.split("=")[0] for word in words if word.startswith("--")}
    assert used
    assert used <= flags_of(Path(words[0]).name)


DOCTOR = commands("mps-trainer")


@pytest.mark.parametrize(("block", "words"), DOCTOR, ids=[str(block) for block, _ in DOCTOR])
def test_the_program_takes_what_the_pages_give_it(block, words):
    _parser().parse_args(words[1:])


def test_set_up_is_two_commands_of_one_line_each():
    section = README.split("## Set up")[1].split("\n## ")[0]
    lines = re.findall(r"```bash\n(.*?)\n```", section, flags=re.DOTALL)
    assert len(lines) == 2
    assert all(line.startswith("python3 -m venv") and "\n" not in line for line in lines)
    assert "run_glue.py --task_name mrpc --embedded" in lines[0]


def test_ci_runs_the_tests_as_readme_does():
    run = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    readme = re.search(r"&& \.venv/bin/python (-m pytest.*)", README)
    ci = re.search(r'^phase tests "\$BIN/python" (.*)$', run, flags=re.MULTILINE)
    assert readme is not None
    assert ci is not None
    assert ci[1] == readme[1]


def test_both_install_with_the_tested_versions():
    run = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    extras = "-c constraints.txt -e '.[examples,docs,dev]'"
    assert extras in README
    assert extras in run


def test_paths_named_in_the_pages_exist():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        named = re.findall(r"(?:examples|mps_trainer|tests|docs|\.ci)/[\w./-]*", page.read_text(encoding="utf-8"))
        missing = {path for path in named if "_build" not in path and not (ROOT / path.rstrip(".")).exists()}
        assert not missing, page
