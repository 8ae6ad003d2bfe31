"""`mps-trainer run`: a script for transformers' Trainer, with this one, as plain Python would run it."""

import sys

import pytest
import transformers

from mps_trainer import cli
from mps_trainer.cli import supervisor
from tests import run_python

BEGIN = "from transformers import Trainer, TrainingArguments\nimport sys\n"


@pytest.fixture
def script(run_on):
    return lambda text, *arguments: run_on("run", BEGIN + text, after=arguments)


def test_run_gives_the_script_this_trainer_and_its_arguments(script):
    ended = script("print(Trainer.__module__, TrainingArguments.__module__, sys.argv[1:], __name__)", "--a", "-b")
    assert ended.stdout == "mps_trainer.trainer mps_trainer.training_args ['--a', '-b'] __main__\n"
    assert ended.stderr.startswith("mps_trainer: transformers.Trainer and TrainingArguments are now mps_trainer's")
    assert ended.stderr.count("\n") == 1
    assert transformers.Trainer.__module__ == "transformers.trainer"  # for what comes after it in this process


def test_run_names_and_compiles_the_script_as_python_does(script, tmp_path):
    ended = script("x: int = 0\nprint(__file__, sys.argv[0], __annotations__['x'])")
    assert ended.stdout == f"{tmp_path / 'train.py'} train.py <class 'int'>\n"


@pytest.mark.parametrize("before", ["", "import mps_trainer.replace_transformers\n"])
def test_run_works_again_in_one_process_and_with_the_import(script, before):
    for _ in range(2):
        assert script(f"{before}print(Trainer.__module__)").stdout == "mps_trainer.trainer\n"


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("sys.exit(7)", 7, ""),
        ("sys.exit('no data')", 1, "no data\n"),
        ("raise ValueError('wrong')", 1, "ValueError: wrong\n"),
        ("raise GeneratorExit('wrong')", 1, "GeneratorExit: wrong\n"),
        ("raise type('Own', (BaseException,), {})('wrong')", 1, "Own: wrong\n"),
        ("1 +", 1, "SyntaxError: invalid syntax\n"),
    ],
)
def test_run_ends_as_python_does(script, text, status, said):
    ended = script(text)
    assert ended.returncode == status
    assert ended.stderr.endswith(said)
    assert "mps_trainer/cli" not in ended.stderr
    assert ended.stderr.count('File "') == (": " in said)


STREAMS = {
    "none": "sys.stdout = sys.stderr = None",
    "deleted": "del sys.stdout, sys.stderr",
    "replaced": "import io\nsys.stdout = sys.stderr = io.StringIO()",
    "not a stream": "sys.stdout = sys.stderr = 7",
}


@pytest.mark.parametrize("what", STREAMS.values(), ids=STREAMS)
def test_run_restores_the_streams(script, what, capfd):
    ended = script(f"print('said by the script', flush=True)\n{what}\n")
    assert (ended.returncode, ended.stdout) == (0, "said by the script\n")
    print("said by this program")
    print("reported by this program", file=sys.stderr)
    assert capfd.readouterr() == ("said by this program\n", "reported by this program\n")


def test_run_replaces_the_trainer_of_modules_beside_the_script(script, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "helper", raising=False)
    (tmp_path / "helper.py").write_text("from transformers import Trainer\n")
    assert script("import helper; print(helper.Trainer.__module__)").stdout == "mps_trainer.trainer\n"
    monkeypatch.delitem(sys.modules, "helper")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package `tools_of_mine` with a module and a `__main__`, in the current folder."""
    folder = tmp_path / "tools_of_mine"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "name.py").write_text("NAME = 'relative'\n")
    shows = "print(NAME, __name__, __spec__.name, __package__, Trainer.__module__, sys.argv[1:], sys.path[0])\n"
    for name in ("train", "__main__"):
        (folder / f"{name}.py").write_text(f"{BEGIN}from .name import NAME\n{shows}print(sys.argv[0], __file__)\n")
    (folder / "broken.py").write_text("import nothing_of_this_name\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")  # the commands set it; it is taken back
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "tools_of_mine"]:
        del sys.modules[name]


@pytest.mark.parametrize(("name", "file"), [("tools_of_mine.train", "train"), ("tools_of_mine", "__main__")])
def test_run_takes_a_module_as_python_does(package, capsys, name, file):
    assert cli.main(["run", "-m", name, "--a", "-m"]) == 0
    full, path = f"tools_of_mine.{file}", package / f"{file}.py"
    trainer = "mps_trainer.trainer"
    lines = [f"relative __main__ {full} tools_of_mine {trainer} ['--a', '-m'] {package.parent}", f"{path} {path}"]
    assert capsys.readouterr().out.splitlines() == lines


@pytest.mark.parametrize("name", ["no_such_tools", "tools_of_mine.no", "no_such.train", "train.py", ".train"])
def test_a_module_that_is_not_there_is_refused_in_one_line(package, capsys, name):
    assert cli.main(["run", "-m", name]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"mps-trainer: error: There is no module {name} to run.")


def test_an_import_that_fails_in_a_module_has_a_traceback(package, capsys):
    assert cli.main(["run", "-m", "tools_of_mine.broken"]) == 1
    assert "No module named 'nothing_of_this_name'" in (said := capsys.readouterr().err)
    assert "mps_trainer/cli" not in said


def test_a_module_is_started_again_as_a_module(package, monkeypatch):
    started = []
    monkeypatch.setattr(supervisor, "supervise", lambda command, *_: started.append(command[1:]) or 0)
    assert cli.main(["run", "--restarts", "1", "-m", "tools_of_mine.train", "--a"]) == 0
    assert started == [["-m", "mps_trainer", "run", "-m", "tools_of_mine.train", "--a"]]


@pytest.mark.parametrize("command", ["check", "fit"])
def test_check_and_fit_take_a_module(package, capsys, command):
    (package / "ends.py").write_text("print('ended')\n")
    cli.main([command, "-m", "tools_of_mine.ends"])
    assert "ended" in capsys.readouterr().out


@pytest.mark.integration
def test_simulate_takes_a_module_whose_workers_find_it(package, tmp_path):
    (package / "loads.py").write_text(
        "import torch\n\n\ndef collate(rows):\n    return torch.tensor(rows)\n\n\n"
        "if __name__ == '__main__':\n"
        "    spawned = {'num_workers': 1, 'multiprocessing_context': 'spawn'}\n"
        "    loader = torch.utils.data.DataLoader([1, 2], 2, collate_fn=collate, **spawned)\n"
        "    print(next(iter(loader)).to('mps').sum().item())\n"
    )
    ended = run_python("-m", "mps_trainer", "simulate", "-m", "tools_of_mine.loads", cwd=tmp_path)
    assert (ended.returncode, ended.stdout.splitlines()[0]) == (0, "3")


def test_restarts_are_of_the_command_without_them(monkeypatch, tmp_path):
    def supervise(started, most, environ, hang_timeout):
        path = str(tmp_path / "train.py")
        assert (started[1:], most) == (["-m", "mps_trainer", "run", path, "--restarts", "9"], 3)
        assert hang_timeout == 600
        assert environ["MPS_TRAINER_COMMAND"] == f"run --restarts 3 --hang_timeout 600 {path}"
        return 7

    monkeypatch.setattr(supervisor, "supervise", supervise)
    path = tmp_path / "train.py"
    path.write_text("")
    assert cli.main(["run", "--restarts", "3", "--hang_timeout", "600", str(path), "--restarts", "9"]) == 7
    assert cli.main(["run", "--restarts", "0", str(path)]) == 0


def test_timeout_without_restarts_is_refused(tmp_path, capsys):
    path = tmp_path / "train.py"
    path.write_text("print('begun')")
    for command in ("run", "launch"):
        assert cli.main([command, "--hang_timeout", "600", str(path)]) == 2
        said = capsys.readouterr()
        assert "--hang_timeout 600 has no effect without --restarts" in said.err
        assert "begun" not in said.out
