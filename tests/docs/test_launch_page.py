"""The page on launching shows what a Mac's terminal would."""

from __future__ import annotations

from mps_trainer import cli
from tests.launching.test_processes import MAC

from .pages import all_blocks, unwrapped

SCREENS = {block.label: unwrapped(block.text) for block in all_blocks(kind="screen")}


def test_the_questions_on_a_mac_are_those_of_the_page(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr(cli.config, "gather_facts", lambda: MAC)
    answers = iter(["", "bf16", "", ""])
    monkeypatch.setattr("builtins.input", lambda prompt: print(prompt + (answer := next(answers))) or answer)
    assert cli.main(["config", "--config_file", "project.yaml"]) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert printed == SCREENS["config"].splitlines()


def test_the_refusal_on_a_mac_is_the_one_of_the_page(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(cli.launch, "gather_facts", lambda environ: MAC)
    (tmp_path / "train.py").touch()
    assert cli.main(["launch", "--num_processes", "2", "train.py"]) == 2
    assert capsys.readouterr().err == SCREENS["refused"] + "\n"
