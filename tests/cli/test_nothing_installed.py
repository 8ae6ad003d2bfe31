"""Commands in a clone, before anything is installed, and with a Python that is too old."""

import ast
import json
import sys
from pathlib import Path

import pytest

import mps_trainer
from mps_trainer import cli
from mps_trainer.utils.installation import how_to_install
from tests import ROOT, run_python
from tests.test_layers import MODULES

COMMANDS = [module.__name__.rpartition(".")[2] for module in cli.COMMANDS]
START = Path(mps_trainer.__file__).read_text(encoding="utf-8")


def bare(*words):
    """Runs a command without the folder of installed packages."""
    return run_python("-S", "-m", "mps_trainer", *words)


@pytest.mark.integration
@pytest.mark.parametrize("words", [["doctor"], ["doctor", "--json"], ["env"], ["example"], ["--help"], ["--version"]])
def test_needs_nothing(words):
    ran = bare(*words)
    assert (ran.returncode, ran.stderr) == (int(words[0] == "doctor"), "")
    if words == ["doctor"]:
        assert ran.stdout.startswith("Do this first: install torch: python -m pip install torch\n")
        assert "GiB of memory" in ran.stdout
    if words == ["doctor", "--json"]:
        assert json.loads(ran.stdout)["facts"]["memory_bytes"] > 0


@pytest.mark.integration
def test_help_of_each_command_needs_nothing():
    for command in COMMANDS:
        ran = bare(command, "--help")
        assert (ran.returncode, ran.stderr) == (0, "")
        assert f"usage: mps-trainer {command}" in ran.stdout


@pytest.mark.integration
@pytest.mark.parametrize(
    ("words", "lacks"),
    [
        ("doctor --facts train.py", "No module named 'msgspec'."),
        ("config --default --config_file new.yaml", "No module named 'yaml'."),
        ("report .", "No module named 'msgspec'."),
        ("export . --to mlx out", "No module named 'msgspec'."),
        ("run train.py", "No module named 'torch'."),
        ("run --restarts 1 train.py", "No module named 'msgspec'."),
        ("launch --restarts 1 train.py", "No module named 'msgspec'."),
        ("launch --cpu --num_processes 2 train.py", "--num_processes 2: Nothing can be trained here: torch is not"),
        ("check train.py", "No module named 'torch'."),
        ("fit train.py", "No module named 'torch'."),
        ("simulate train.py", "The simulated mps device needs torch"),
        ("selftest", "Nothing can be trained here: torch is not installed"),
        ("speed --quick", "Nothing can be trained here: torch is not installed"),
        ("--print-completion bash", "No module named 'shtab'."),
    ],
)
def test_commands_that_need_more_say_so_in_one_line(words, lacks, tmp_path):
    (tmp_path / "train.py").touch()
    ran = run_python("-S", "-m", "mps_trainer", *words.split(), cwd=tmp_path)
    assert ran.returncode in (1, 2)
    (line,) = ran.stderr.splitlines()
    assert line.startswith(f"mps-trainer: error: {lacks}")
    assert "python -m pip install" in line


def test_a_package_that_is_missing_is_an_error_of_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert cli.main(["config", "--default", "--config_file", "new.yaml"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"Install what mps_trainer needs, in a virtual environment: python -m pip install -e {ROOT}")


def test_without_a_clone_pip_completes_the_installation(tmp_path):
    assert how_to_install(package=tmp_path / "site-packages" / "mps_trainer").endswith("pip install mps_trainer")


def imported_at_the_top(name):
    """Returns the absolute names of modules that a module of the package imports when it is imported itself."""
    path = MODULES[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    waiting = list(ast.parse(path.read_text(encoding="utf-8")).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) - node.level + 1], *filter(None, [node.module])]
            names = ".".join(base if node.level else [node.module])
            yield from (names, *(f"{names}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            waiting += [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt)]


def test_commands_import_the_standard_library_alone():
    waiting, seen = {"mps_trainer.__main__", "mps_trainer"}, set()
    while waiting:
        seen.add(name := waiting.pop())
        found = set(imported_at_the_top(name))
        outside = {each.partition(".")[0] for each in found} - {"mps_trainer"}
        assert outside <= set(sys.stdlib_module_names), name
        parents = {each.rpartition(".")[0] for each in found}
        waiting |= ((found | parents) & set(MODULES)) - seen
    assert "mps_trainer.launching.restarts" in seen


@pytest.mark.parametrize(("argv", "kind"), [(["-m", "doctor"], SystemExit), (["train.py"], ImportError)])
def test_on_an_older_python_the_error_names_one_to_install(argv, kind, monkeypatch):
    code = compile(START, "__init__.py", "exec")
    with monkeypatch.context() as old:
        old.setattr(sys, "version_info", (3, 9, 6, "final", 0))
        old.setattr(sys, "version", "3.9.6 (default, Apple)")
        old.setattr(sys, "argv", argv)
        with pytest.raises(kind) as refused:
            exec(code, {"__name__": "mps_trainer", "__package__": "mps_trainer"})
    assert str(refused.value).startswith(f"mps_trainer needs Python 3.10 or later, and {sys.executable} is 3.9.6. ")
    assert "python3.12 -m venv .venv" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_older_python_reads_the_file_that_refuses_it():
    """Python 3.7 is the oldest with `from __future__ import annotations`. No other module runs before the refusal."""
    tree = ast.parse(START, feature_version=(3, 7))
    before = [node for node in tree.body if node.lineno <= START[: START.index("sys.version_info")].count("\n")]
    assert not [node for node in before if isinstance(node, ast.ImportFrom) and node.level]
