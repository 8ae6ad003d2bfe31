"""All commands share help, spellings and completion."""

import json
import subprocess
from unittest import mock

import pytest

from mps_trainer import cli
from tests import HUNG_AFTER, run_python

COMMANDS = ("", *(module.__name__.rpartition(".")[2] for module in cli.COMMANDS))
HEAVY = ("torch", "numpy", "transformers", "accelerate", "datasets", "yaml", "shtab")


@pytest.fixture
def printed(capsys):
    def run(*words):
        with pytest.raises(SystemExit) as end:
            cli.main(list(words))
        assert end.value.code == 0
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_screen(command, printed, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = printed(*command.split(), "--help").splitlines()
    assert 5 < len(lines) <= 23  # a terminal has 24; the prompt has the last
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("command", COMMANDS[1:])
def test_help_begins_with_an_example_that_the_command_takes(command, printed):
    example = printed(command, "--help").splitlines()[0].removeprefix("example: ").split()
    assert example[:2] == ["mps-trainer", command]
    assert cli._parser().parse_args(example[1:]).command == command


@pytest.mark.integration
def test_help_and_copies_of_examples_load_nothing_that_takes_time(tmp_path):
    lines = [*([*command.split(), "--help"] for command in COMMANDS), ["example", "notebooks", str(tmp_path / "mine")]]
    code = f"""
import contextlib, io, json, sys
from mps_trainer.cli import main
for words in {lines!r}:
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main(words)
print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))
"""
    result = run_python("-c", code)
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout) == []


@pytest.mark.parametrize("line", ["launch --num_processes 3 x.py --a_b", "launch --num-processes 3 x.py --a_b"])
def test_underscores_and_dashes_are_the_same_but_for_the_scripts_own_flags(line):
    arguments = cli._parser().parse_args(line.split())
    assert (arguments.num_processes, arguments.arguments) == ("3", ["--a_b"])
    assert cli._parser().parse_args(["simulate", "--same_draws_as_cpu", "x.py"]).same_draws_as_cpu


@pytest.mark.parametrize(
    ("line", "says", "command"),
    [
        ("doctor --fatcs x", "unrecognized arguments: --fatcs x. Did you mean --facts?", " doctor"),
        ("simulate --memroy=8GB x.py", "unrecognized arguments: --memroy=8GB. Did you mean --memory?", " simulate"),
        ("check x.py --json", "There is no file x.py to run. Name a Python script.", None),
        ("fit nowhere.py", "There is no file nowhere.py to run. Name a Python script.", None),
        ("doctor facts.json", "unrecognized arguments: facts.json.", " doctor"),
        ("--wrong doctor", "unrecognized arguments: --wrong.", ""),
        ("docter", "unknown command 'docter'. Did you mean doctor?", ""),
        ("xyzzy", "unknown command 'xyzzy'.", ""),
        ("", "the following arguments are required: COMMAND.", ""),
        ("simulate --memory 8GB", "the following arguments are required: SCRIPT.", " simulate"),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line_with_the_nearest_name(line, says, command, capsys):
    assert cli.main(line.split()) == 2
    see = "" if command is None else f" See `mps-trainer{command} --help`."
    assert capsys.readouterr().err == f"mps-trainer: error: {says}{see}\n"


def test_ctrl_c_is_said_in_a_line(monkeypatch, capsys):
    monkeypatch.setattr(cli.env, "gather_facts", mock.Mock(side_effect=KeyboardInterrupt))
    assert cli.main(["env"]) == 130
    assert capsys.readouterr().err == "\nmps-trainer: interrupted.\n"


COMPLETE = """\
source completion.bash
complete -p mps-trainer
complete_line() {
  COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
  _shtab_mps_trainer
  echo "${COMPREPLY[@]}"
}
complete_line mps-trainer ''
complete_line mps-trainer la
complete_line mps-trainer launch --m
complete_line mps-trainer launch --mixed_precision b
complete_line mps-trainer launch --cpu tr
complete_line mps-trainer launch train.py --data_file da
complete_line mps-trainer config --config_file da
complete_line mps-trainer example te
complete_line mps-trainer example notebooks in
complete_line mps-trainer --print-completion ''
"""


def test_bash_completes_commands_flags_values_and_files(tmp_path, printed):
    (tmp_path / "completion.bash").write_text(printed("--print-completion", "bash"))
    (tmp_path / "train.py").touch()
    (tmp_path / "data.csv").touch()
    (tmp_path / "into").mkdir()
    result = subprocess.run(["bash", "-c", COMPLETE], cwd=tmp_path, capture_output=True, text=True, timeout=HUNG_AFTER)
    assert result.stderr == ""
    assert result.stdout.splitlines() == [
        "complete -o bashdefault -F _shtab_mps_trainer mps-trainer",
        " ".join(COMMANDS[1:]),
        "launch",
        "--mixed_precision --mps_fallback --module",
        "bf16",
        "train.py",
        "data.csv",
        "data.csv",
        "text-classification",
        "into",
        "bash zsh",
    ]


def test_zsh_is_told_a_line_for_each_command(printed):
    script = printed("--print-completion", "zsh")
    assert script.startswith("#compdef mps-trainer\n")
    for command in COMMANDS[1:]:
        (line,) = [line for line in script.splitlines() if line.startswith(f"    {command}:'")]
        assert len(line) < 90
    assert '":a Python file:_files"' in script
