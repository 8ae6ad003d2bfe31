"""`mps-trainer config`, as somebody types it."""

import io
import os
from dataclasses import replace
from unittest import mock

import pytest

from mps_trainer import cli
from mps_trainer.cli.config import ask_settings
from mps_trainer.launching.config_file import load
from mps_trainer.launching.settings import DEFAULTS
from tests.conftest import refusal
from tests.launching.test_processes import GPUS, MAC, PC

OLD_MAC = replace(MAC, os_version="13.6", torch_version="2.8.0")
DEFAULTS_WRITTEN = {name: value for name, value in DEFAULTS.items() if value is not None}


@pytest.fixture
def home(no_settings, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")  # the same questions on every machine
    return no_settings / "config" / "mps_trainer" / "config.yaml"


def test_ctrl_c_leaves_nothing(home, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("builtins.input", mock.Mock(side_effect=["", KeyboardInterrupt]))
    assert cli.main(["config"]) == 130
    assert capsys.readouterr().err == "\nmps-trainer: interrupted.\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stdin", [io.StringIO(), None], ids=["ended", "closed"])
def test_no_more_answers_is_a_line(home, tmp_path, monkeypatch, capsys, stdin):
    """Ctrl-D, a pipe that ends, or none at all."""
    monkeypatch.setattr("sys.stdin", stdin)
    assert cli.main(["config"]) == 2
    assert capsys.readouterr().err == (
        "mps-trainer: error: The input ended before the last answer. Nothing was written. "
        "`mps-trainer config --default` asks nothing.\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_default_asks_nothing_and_looks_at_no_machine(home, monkeypatch, capsys):
    monkeypatch.setattr(cli.config, "gather_facts", lambda: pytest.fail("looked at the machine"))
    assert cli.main(["config", "--default"]) == 0
    assert load(home).settings == DEFAULTS_WRITTEN
    assert cli.main(["config", "--default", "--config_file", "sub/other.yaml"]) == 0
    assert capsys.readouterr().out.count("Written to ") == 2
    assert load(home.parents[2] / "sub" / "other.yaml").settings == DEFAULTS_WRITTEN


@pytest.fixture
def homeless(home, monkeypatch):
    """An unknown user id without HOME, as under `docker run -u 54321`."""
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "HF_HOME", "MPS_TRAINER_CACHE"):
        monkeypatch.delenv(name, raising=False)

    for name in ("getpwuid", "getpwnam"):
        monkeypatch.setattr(f"pwd.{name}", mock.Mock(side_effect=KeyError))


def test_without_a_home_folder_there_is_no_file_and_config_asks_for_one(homeless, capsys, tmp_path):
    assert cli.main(["config", "show"]) == 0
    assert capsys.readouterr().out.startswith("No settings file, so these are the defaults:\n")
    assert cli.main(["config", "--default"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("mps-trainer: error: There is no folder for the settings file: HOME is not set, and ")
    assert "Name a file: `mps-trainer config --config_file FILE`" in said
    assert list(tmp_path.iterdir()) == []
    assert cli.main(["config", "--default", "--config_file", "own.yaml"]) == 0
    assert load(tmp_path / "own.yaml").settings == DEFAULTS_WRITTEN
    capsys.readouterr()
    for command in ("config", "show"), ("config", "--default"):
        assert cli.main([*command, "--config_file", "~/own.yaml"]) == 2
        assert "~/own.yaml: there is no such home folder." in capsys.readouterr().err


def test_launch_runs_a_script_without_a_home_folder(homeless, monkeypatch, tmp_path):
    started = []
    monkeypatch.setattr(os, "execve", lambda path, words, environ: started.append(words))
    monkeypatch.setattr(cli.launch, "torchrun", lambda *arguments: 0)  # execve does not return
    (tmp_path / "train.py").write_text("print(1)")
    assert cli.main(["launch", "train.py"]) == 0
    assert [words[-1] for words in started] == ["train.py"]


def test_what_is_cached_does_without_a_home_folder(homeless, capsys, tmp_path):
    from mps_trainer.tools.simulator import build

    refused = refusal(build._library, build.SOURCES, build.MODULE, kind=build.SimulatorUnavailableError)
    assert "Set MPS_TRAINER_CACHE" in refused
    assert cli.main(["doctor", "--json"]) in (0, 1)
    assert '"cache_folder": null' in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


ACCELERATES = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config: {fsdp_version: 2}
mixed_precision: bf16
num_processes: 8
use_cpu: false
"""


def test_accelerates_settings_are_taken_over_and_the_rest_is_told(home, tmp_path, capsys):
    path = tmp_path / "hf" / "accelerate" / "default_config.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(ACCELERATES)
    left = (
        "  not distributed_type: FSDP is not one of NO, MPS, MULTI_CPU, MULTI_GPU, MULTI_XPU.\n"
        "  not fsdp_config: give the script --fsdp and --fsdp_config instead.\n"
        "  not num_processes: 8 belongs to that distributed_type.\n"
    )
    assert cli.main(["config", "show"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"From Accelerate's {path}:\n  device: auto (default)\n  mixed_precision: bf16\n")
    assert left in shown
    assert cli.main(["config", "--default"]) == 0
    assert capsys.readouterr().out.startswith(f"{shown}Written to {home}:\n")
    assert load(home).settings == {**DEFAULTS_WRITTEN, "mixed_precision": "bf16"}
    assert path.read_text() == ACCELERATES


def test_show_says_what_is_in_force_and_from_where(home, monkeypatch, capsys):
    assert cli.main(["config", "show"]) == 0
    assert capsys.readouterr().out.startswith(
        "No settings file, so these are the defaults:\n  device: auto (default)\n"
    )
    with open("own.yaml", "w") as file:
        file.write("mixed_precision: bf16\nnum_processes: 2\n")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    assert cli.main(["config", "show", "--config-file", "own.yaml"]) == 0
    assert capsys.readouterr().out == (
        "From own.yaml:\n  device: auto (default)\n  mixed_precision: bf16\n  mps_fallback: false (default)\n"
        "  num_processes: 2\n  memory_fraction: null (default)\n"
        "  note: ACCELERATE_MIXED_PRECISION=fp16 is set in the environment, and overrides the file.\n"
    )


@pytest.fixture
def answering(monkeypatch, capsys):
    """Returns the settings, the offered answers in the order of the prompts, and the printed lines."""

    def answer(facts, *answers, proposed=None):
        offered, left = [], list(answers)
        monkeypatch.setattr("builtins.input", lambda prompt: offered.append(prompt) or left.pop(0))
        settings = ask_settings(facts, proposed or {})
        assert not left
        return settings, offered, capsys.readouterr().out.splitlines()[2:]

    return answer


def offers(prompts):
    return [prompt.split("[")[1].removesuffix("]: ") for prompt in prompts]


def test_a_mac_asks_for_fallback_and_memory_and_takes_enter(answering):
    settings, prompts, printed = answering(MAC, "", "", "", "")
    assert settings == DEFAULTS
    assert "auto takes mps here" in prompts[0]
    assert offers(prompts) == ["auto", "no", "no", "none"]
    assert printed == ["One process, because a Mac has one GPU. `mps-trainer launch --hosts` trains on several Macs."]
    own = {"device": "mps", "mixed_precision": "bf16", "mps_fallback": True, "memory_fraction": 0.8}
    assert answering(MAC, "mps", "bf16", "yes", "0.8")[0] == {**own, "num_processes": 1}


def test_other_devices_ask_for_processes_instead(answering):
    settings, prompts, _ = answering(GPUS, "", "", "2")
    assert settings == {**DEFAULTS, "num_processes": 2}
    assert offers(prompts) == ["auto", "no", "1"]
    assert answering(MAC, "cpu", "", "4")[0] == {**DEFAULTS, "device": "cpu", "num_processes": 4}


@pytest.mark.parametrize(
    ("facts", "answers", "says"),
    [
        (PC, ("gpu", "", "", ""), "device='gpu' is not accepted: it must be one of auto"),
        (PC, ("mps", "", "", ""), "accelerator='mps' was requested, and it cannot run here: this machine runs Linux"),
        (OLD_MAC, ("", "bf16", "", "", ""), "mps does not compute in bf16 here."),
        (GPUS, ("", "", "3", ""), "Take at most 2"),
    ],
)
def test_an_invalid_answer_is_explained_and_asked_again(answering, facts, answers, says):
    _, prompts, printed = answering(facts, *answers)
    assert says in printed[0]
    again = next(i for i, prompt in enumerate(prompts) if prompt in prompts[:i])
    assert prompts[again] == prompts[again - 1]


def test_proposed_settings_are_taken_with_enter_where_they_can_run(answering):
    proposed = {**DEFAULTS, "device": "mps", "mixed_precision": "bf16", "mps_fallback": True, "memory_fraction": 0.75}
    settings, prompts, _ = answering(MAC, "", "", "", "", proposed=proposed)
    assert settings == proposed
    assert offers(prompts) == ["mps", "bf16", "yes", "0.75"]
    assert answering(MAC, "", "", "", "none", proposed=proposed)[0]["memory_fraction"] is None
    _, _, printed = answering(PC, "", "auto", "", "", proposed={"device": "mps"})
    assert "it cannot run here" in printed[0]
