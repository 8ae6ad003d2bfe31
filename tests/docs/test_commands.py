"""Commands in README and the documentation use what exists."""

import contextlib
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.__main__ import parse as parse_benchmarks
from mps_trainer.cli import _parser
from tests.faults import kill

from ..examples.conftest import FOLDERS
from .pages import PAGES, ROOT, Block, all_blocks, blocks_of, joined

README = (ROOT / "README.md").read_text(encoding="utf-8")
SHELLS = ("bash", "console", "zsh")


def commands(word: str) -> list[tuple[Block, list[str]]]:
    """Returns the commands in which `word` is the script or program, as words from there on."""
    found = []
    of_examples = [block for folder in FOLDERS for block in blocks_of(folder / "README.md")]
    for block in [*(block for shell in SHELLS for block in all_blocks(shell)), *of_examples]:
        for line in joined(block.text).splitlines():
            for command in re.split(r"&&|[>|]", line):
                words = [w for w in shlex.split(command, comments=True) if w != "..."]
                index = next((i for i, w in enumerate(words) if w == word or w.endswith("/" + word)), None)
                if index is not None:
                    found.append((block, words[index:]))
    return found


def id_of(found: object) -> str:
    return str(found) if isinstance(found, Block) else str(found[0]).rpartition("/")[2]  # type: ignore[index]


# `run_glue.py ...` stands for any flags.
EXAMPLES = [found for found in commands("run_glue.py") if found[1][1:]]


@pytest.mark.parametrize(("block", "words"), EXAMPLES, ids=id_of)
def test_shown_flags_of_examples_are_parsed(block, words, tmp_path, monkeypatch):
    from run_glue import parse

    monkeypatch.chdir(tmp_path)
    for flag, value in pairwise(words):
        if flag.endswith("_file"):  # it has to be there to be taken
            Path(value).write_text("label,text\n", encoding="utf-8")
    parse(words[1:])


DOCTOR = commands("mps-trainer")


@pytest.mark.parametrize(("block", "words"), DOCTOR, ids=id_of)
def test_shown_commands_are_parsed(block, words, capsys):
    with contextlib.suppress(SystemExit):  # --print-completion prints and ends
        _parser().parse_args(words[1:])
    assert "error" not in capsys.readouterr().err


def test_commands_in_prose_exist():
    (below,) = (action for action in _parser()._actions if action.dest == "command")
    options = {name: set(parser._option_string_actions) for name, parser in below.choices.items()}
    options[""] = set(_parser()._option_string_actions)
    for page in PAGES:
        for text in re.findall(r"(?<!\})`mps-trainer ([^`]+)`", page.read_text(encoding="utf-8")):
            words = re.split(r"[>|]", text)[0].split()
            name = "" if words[0].startswith("-") else words.pop(0)
            script = next((i for i, word in enumerate(words) if word == "SCRIPT" or word.endswith(".py")), len(words))
            assert name == "COMMAND" or name in options, f"{page.name}: {text}"
            used = {word.partition("=")[0] for word in words[:script] if word.startswith("-")}
            assert used <= options.get(name, set()), f"{page.name}: {text}"


MODULES = re.compile(r"python3? -m (benchmarks(?!\.)|tests\.faults\.\w+|mps_trainer)\b([^`\n]*)")


def test_shown_module_arguments_are_parsed():
    found = [match.groups() for page in PAGES for match in MODULES.finditer(joined(page.read_text(encoding="utf-8")))]
    assert {module for module, _ in found} >= {"benchmarks", "tests.faults.kill", "mps_trainer"}
    for module, rest in found:
        words = shlex.split(rest, comments=True)
        if module == "benchmarks":
            parse_benchmarks(words)
        elif module == "mps_trainer":
            _parser().parse_args(words or ["doctor"])
        else:
            kill.parse(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pip_is_run_in_an_environment(page):
    """Homebrew's Python refuses to install outside of one. Text blocks quote errors, which name no folder.
    A workflow runs in a machine of its own.
    """
    text = re.sub(r"^```(?:text|yaml)\n.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for match in re.finditer(r"(uv |\S*)pip3? (?:install|wheel)\b", text):
        is_active = "bin/activate" in text[text.rfind("```", 0, match.start()) : match.start()]
        assert match[1] == "uv " or match[1].endswith("/bin/") or is_active, match[0]


def test_named_paths_exist():
    for page in PAGES:
        named = re.findall(
            r"(?<![\w./-])(?:examples|mps_trainer|tests|docs|\.ci)/[\w./-]*", page.read_text(encoding="utf-8")
        )
        named = [path for path in named if "_build" not in path and path != "mps_trainer/config.yaml"]  # the user's
        missing = {path for path in named if not (ROOT / path.rstrip(".")).exists()}
        assert not missing, page
