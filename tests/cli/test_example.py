"""The examples as a folder of one's own."""

import shlex
import shutil
import sys
from pathlib import Path

import pytest

from mps_trainer import cli
from mps_trainer.cli import example
from tests import ROOT

FOLDERS = sorted(path.name for path in (ROOT / "examples").iterdir() if path.is_dir())


def files_of(folder: Path) -> set[str]:
    found = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    return {str(path) for path in found if not {"__pycache__", "trainer_output"} & set(path.parts)}


def test_every_folder_of_the_examples_is_listed_with_a_line(capsys):
    assert cli.main(["example"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.split()[0] for line in lines[: len(FOLDERS)]) == FOLDERS == sorted(example.EXAMPLES)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", FOLDERS)
def test_a_copy_has_every_file_and_nothing_that_was_left_by_a_run(name, tmp_path, capsys):
    (ROOT / "examples" / name / "__pycache__").mkdir(exist_ok=True)
    (ROOT / "examples" / name / "__pycache__" / "left.pyc").touch()
    target = tmp_path / "deep" / f"my {name}"
    assert cli.main(["example", name, str(target)]) == 0
    assert files_of(target) == files_of(ROOT / "examples" / name)
    assert not list(target.rglob("__pycache__"))
    printed = capsys.readouterr().out
    assert f"Copied {len(files_of(target))} files to {target}" in printed
    *_, enter, start = [line.strip() for line in printed.splitlines() if line.startswith("  ")]
    assert shlex.split(enter) == ["cd", str(target)]
    script = next(word for word in shlex.split(start) if word.endswith((".py", ".ipynb")))
    assert (target / script).is_file()
    assert example.EXAMPLES[name].runs in start


@pytest.mark.parametrize(("is_installed", "installs"), [(True, False), (False, True)])
@pytest.mark.parametrize(("which", "python"), [("/usr/bin/python", sys.executable), (sys.executable, "python")])
def test_missing_packages_are_named_and_python_by_its_path_if_the_shell_runs_another(
    monkeypatch, tmp_path, is_installed, installs, which, python
):
    monkeypatch.setattr(example, "find_spec", lambda name: is_installed or None)
    monkeypatch.setattr(shutil, "which", lambda name: which)
    *install, _, start = map(shlex.split, example.next_commands(example.EXAMPLES["image-classification"], tmp_path))
    assert install == [[python, "-m", "pip", "install", "mps_trainer[examples]"]] * installs
    assert start[0] == python


def test_a_copy_that_fails_on_the_way_is_taken_back(monkeypatch, tmp_path, capsys):
    copied = []

    def full(source, target):
        copied.append(target)
        if len(copied) == 3:
            raise OSError(28, "No space left on device")
        Path(target).touch()

    monkeypatch.setattr(example.shutil, "copyfile", full)
    (tmp_path / "empty").mkdir()
    for folder in ("new", "empty"):
        copied.clear()
        assert cli.main(["example", "text-classification", str(tmp_path / folder)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.undo()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert cli.main(["example", "notebooks", str(tmp_path / "empty")]) == 0


def test_an_installation_without_examples_says_so(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(example, "PACKAGE", tmp_path / "mps_trainer")
    assert cli.main(["example", "notebooks", str(tmp_path / "mine")]) == 2
    assert "has no examples. Install a wheel" in capsys.readouterr().err
    assert not (tmp_path / "mine").exists()
