"""`mps-trainer launch`: what a script begins with, and how it ends."""

import json
import os
import shlex
import signal
import subprocess
import sys

import pytest

from mps_trainer import cli
from mps_trainer.cli import supervisor
from tests import HUNG_AFTER, ROOT

from .test_doctor import run

NAMES = ("ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_CPU", "PYTORCH_ENABLE_MPS_FALLBACK")
WATERMARK = "PYTORCH_MPS_HIGH_WATERMARK_RATIO"


@pytest.fixture
def folder(no_settings, monkeypatch):
    """A working folder with a script, for a user with no settings of any kind."""
    for name in (*NAMES, WATERMARK):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (no_settings / "train.py").write_text("")
    return no_settings


class Started(BaseException):
    pass


@pytest.fixture
def started(folder, monkeypatch):
    """Launches as far as to where the script would begin: its command line and the variables that are new."""

    def begin(path, command, environ):
        new = {name: value for name, value in environ.items() if os.environ.get(name) != value}
        assert shlex.split(new.pop("MPS_TRAINER_COMMAND"))[-1] in command
        raise Started(command[1:], new)

    monkeypatch.setattr(os, "execve", begin)

    def launch(*words):
        before = dict(os.environ)
        with pytest.raises(Started) as begun:
            cli.main(["launch", *words])
        assert dict(os.environ) == before
        return begun.value.args

    return launch


def test_launch_needs_no_open_streams(started, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert started("train.py") == (["train.py"], {})


@pytest.mark.parametrize("words", [["train.py", "--help", "-m", "", "--config", "x"], ["-m", "json.tool", "x.json"]])
def test_script_without_settings_is_run_as_typed(started, words):
    assert started(*words) == (words, {})


def test_flags_override_the_shell_that_the_users_file_and_that_accelerates(started, folder, monkeypatch):
    accelerates = folder / "hf" / "accelerate" / "default_config.yaml"
    accelerates.parent.mkdir(parents=True)
    accelerates.write_text("distributed_type: 'NO'\nmixed_precision: fp16\nuse_cpu: true\n")
    assert started("train.py")[1] == dict(zip(NAMES[:2], ("fp16", "true"), strict=True))
    (folder / "config" / "mps_trainer").mkdir(parents=True)
    (folder / "config" / "mps_trainer" / "config.yaml").write_text("mixed_precision: bf16\nmemory_fraction: 1.7\n")
    assert started("train.py")[1] == {NAMES[0]: "bf16", WATERMARK: "1.7"}
    assert started("--mixed_precision", "no", "train.py")[1] == {NAMES[0]: "no", WATERMARK: "1.7"}
    assert started("--config_file", str(accelerates), "train.py")[1][NAMES[0]] == "fp16"
    monkeypatch.setenv(NAMES[0], "fp16")
    assert started("train.py")[1] == {WATERMARK: "1.7"}
    flags = ("--mixed_precision", "no", "--cpu", "--mps_fallback")
    assert started(*flags, "train.py")[1] == {**dict(zip(NAMES, ("no", "true", "1"), strict=True)), WATERMARK: "1.7"}


def test_ignored_keys_of_accelerate_are_one_line(started, capsys):
    with open("a.yaml", "w") as file:
        file.write("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2}\nnum_processes: 8\n")
    started("--config_file", "a.yaml", "train.py")
    assert capsys.readouterr().err == (
        "mps-trainer: a.yaml has distributed_type, deepspeed_config, num_processes, which this command leaves out. "
        "`mps-trainer config show` says why.\n"
    )


def test_the_machine_is_looked_at_only_where_it_matters(started, monkeypatch):
    monkeypatch.setattr(cli.launch, "gather_facts", lambda environ: pytest.fail("looked at the machine"))
    started("--cpu", "train.py")
    with pytest.raises(pytest.fail.Exception):
        cli.main(["launch", "--cpu", "--num_processes", "2", "train.py"])


@pytest.mark.parametrize(
    ("codes", "status"),
    [
        ({1: 3}, 3),
        ({1: -40}, 168),
        ({1: -9}, 137),
        ({0: 1, 1: -9}, 137),
        ({0: -15, 1: 7}, 7),
        ({1: -15}, 143),
    ],
)
def test_torchrun_ends_with_the_status_of_the_first_process_that_failed(folder, monkeypatch, capsys, codes, status):
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    def fail(parsed):
        assert (parsed.nproc_per_node, parsed.module, parsed.standalone) == ("3", True, True)
        assert (parsed.training_script, parsed.training_script_args) == ("json.tool", ["--help", "--log"])
        assert os.environ["OMP_NUM_THREADS"] == "2"
        failures = {rank: ProcessFailure(rank, 11 + rank, code, "none") for rank, code in codes.items()}
        raise ChildFailedError("json.tool", failures)

    monkeypatch.setattr("torch.distributed.run.run", fail)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(7)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")  # launch sets it for torchrun's processes
    words = ["--cpu", "--num_processes", "3", "-m", "json.tool", "--help", "--log"]
    assert cli.main(["launch", *words]) == status
    assert f"process 1 of 3 ended with status {status}" in capsys.readouterr().err


@pytest.mark.integration
def test_the_script_is_the_process_itself(folder):
    """Its name, its arguments, its folder, its variables, its standard input, and the signal that ends it."""
    (folder / "sub").mkdir()
    (folder / "sub" / "train.py").write_text(f"""\
import json, os, signal, sys
print(json.dumps([__name__, sys.argv, sys.path[0], [os.environ.get(n) for n in {NAMES!r}], input()]), flush=True)
assert "torch" not in sys.modules and "mps_trainer" not in sys.modules
os.kill(os.getpid(), signal.SIGTERM)
""")
    words = ["launch", "--cpu", "--mixed_precision", "bf16", "sub/train.py", "--x", "--cpu"]
    command = [sys.executable, "-m", "mps_trainer", *words]
    result = subprocess.run(command, input="typed\n", capture_output=True, text=True, timeout=HUNG_AFTER)
    assert result.returncode == -signal.SIGTERM  # 143 in a shell
    argv = ["sub/train.py", "--x", "--cpu"]
    assert json.loads(result.stdout) == [
        "__main__", argv, str(folder / "sub"), ["bf16", "true", None], "typed"
    ]  # fmt: skip


TWO = """\
import os, sys, torch, torch.distributed
torch.distributed.init_process_group("gloo")
number = torch.tensor(10 ** torch.distributed.get_rank())
torch.distributed.all_reduce(number)
if os.environ["RANK"] == "0":
    print("sum", number.item(), sys.argv[1:], os.environ["ACCELERATE_USE_CPU"], flush=True)
torch.distributed.destroy_process_group()
raise SystemExit(7 * int(os.environ["RANK"]))
"""


@pytest.mark.integration
def test_two_processes_find_each_other_and_the_status_is_that_of_the_one_that_fails(folder):
    (folder / "train.py").write_text(TWO)
    result = run("launch", "--cpu", "--num_processes", "2", "train.py", "--nproc_per_node", "9")
    assert result.stdout == "sum 11 ['--nproc_per_node', '9'] true\n", result.stderr
    assert result.returncode == 7
    assert result.stderr.splitlines()[-1] == "mps-trainer: process 1 of 2 ended with status 7, which ended the run."
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("train.py --x", "train.py --x"),
        ("-m json.tool", "-m json.tool"),
        ("--num_processes 2 train.py --x", "-m mps_trainer launch --num_processes 2 train.py --x"),
    ],
)
def test_restarts_are_of_what_would_be_started_without_them(folder, monkeypatch, words, command):
    def supervise(started, most, environ, hang_timeout, is_launcher):
        assert (hang_timeout, is_launcher) == (None, "--num_processes" in words)
        assert started == [sys.executable, *command.split()]
        assert (most, environ["ACCELERATE_USE_CPU"]) == (3, "true")
        return 7

    monkeypatch.setattr(supervisor, "supervise", supervise)
    assert cli.main(["launch", "--cpu", "--restarts", "3", *words.split()]) == 7
