"""The output that README and the documentation show is the output that the package prints."""

import re

import pytest
import torch
from transformers import TrainerCallback

from mps_trainer import DeviceRequest, cli, resolve
from mps_trainer.cli.screen import screen
from mps_trainer.devices.findings import findings
from tests.devices.diagnosed import DIAGNOSED
from tests.launching.test_processes import MAC

from .machines import MACHINES, REPORTED
from .pages import ROOT, all_blocks, one_line, unwrapped
from .provoke import PROVOCATIONS

DECISIONS, DOCTOR = (all_blocks(kind=kind) for kind in ("decision", "doctor"))
MESSAGES = all_blocks(kind="message")


@pytest.mark.parametrize("block", DECISIONS, ids=str)
def test_shown_decision_is_the_one_for_its_machine(block):
    assert unwrapped(block.text) == str(resolve(DeviceRequest(), MACHINES[block.label]))


@pytest.mark.parametrize("block", DOCTOR, ids=str)
def test_shown_screen_is_printed_by_doctor(block):
    assert block.text == screen(REPORTED[block.label])


def test_every_machine_and_message_is_shown():
    assert DECISIONS
    assert {block.label for block in DOCTOR} == set(REPORTED)
    assert sorted(block.label for block in MESSAGES) == sorted(PROVOCATIONS)


def test_doctor_page_lists_every_finding_with_its_severities():
    page = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^\| `([\w-]+)` \| ([\w, ]+) \|", page, re.MULTILINE))
    found = [finding for row in DIAGNOSED.values() for finding in findings(row.facts)]
    severities = {finding.name: {other.severity for other in found if other.name == finding.name} for finding in found}
    assert {name: set(text.split(", ")) for name, text in shown.items()} == severities


@pytest.mark.parametrize("block", MESSAGES, ids=lambda block: block.label)
def test_quoted_message_is_printed(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = one_line(PROVOCATIONS[block.label]())
    assert one_line(block.text) == printed.replace(f"{tmp_path}/", "")  # the page leaves the working folder out


def test_shown_report_is_that_of_the_step_above_it():
    (shown,) = all_blocks("text", "report")
    (step,) = (each for each in all_blocks("python") if each.page == shown.page and "multi_margin_loss(" in each.text)
    names: dict = {}
    exec(compile("\n" * step.line + step.text, ROOT / step.page, "exec"), names)
    version = torch.__version__.partition("+")[0]
    report = str(names["report"]).replace(torch.__version__, version)
    assert report.startswith(shown.text.replace("2.15.0", version))


@pytest.fixture
def on_mac(monkeypatch, tmp_path):
    """The launcher on a Mac, in an empty folder. Returns the screens that the page shows."""
    monkeypatch.chdir(tmp_path)
    for name in ("HF_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(cli.config, "gather_facts", lambda: MAC)
    monkeypatch.setattr(cli.launch, "gather_facts", lambda environ: MAC)
    return {block.label: unwrapped(block.text) for block in all_blocks(kind="screen")}


def test_config_asks_shown_questions(on_mac, monkeypatch, capsys):
    answers = iter(["", "bf16", "", ""])
    monkeypatch.setattr("builtins.input", lambda prompt: print(prompt + (answer := next(answers))) or answer)
    assert cli.main(["config", "--config_file", "project.yaml"]) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert printed == on_mac["config"].splitlines()


def test_launch_refuses_with_shown_message(on_mac, tmp_path, capsys):
    (tmp_path / "train.py").touch()
    assert cli.main(["launch", "--num_processes", "2", "train.py"]) == 2
    assert capsys.readouterr().err == on_mac["refused"] + "\n"


@pytest.fixture
def run(bert, sentences, trained):
    """`run(*callbacks, **settings)` trains for an epoch of two steps of two batches each."""
    data = {"model": bert, "train_dataset": sentences, "eval_dataset": sentences[:2]}
    saves = {"num_train_epochs": 1, "save_strategy": "steps", "save_steps": 2}
    sizes = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    return lambda *callbacks, **settings: trained({**data, "callbacks": [*callbacks]}, **saves, **sizes, **settings)


def test_events_have_shown_order(run):
    seen: list[str] = []

    class Recorder(TrainerCallback):
        def __getattribute__(self, name: str):
            return lambda *args, **kwargs: seen.append(name) if name.startswith("on_") else None

    run(Recorder(), eval_strategy="steps", eval_steps=2)
    (shown,) = all_blocks(kind="events")
    assert seen == ["on_init_end", *shown.text.split()]


@pytest.mark.parametrize(
    ("settings", "left_out"),
    [
        ({}, set()),
        ({"save_only_model": True}, {"optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state.pth", "loop_state.json"}),
    ],
)
def test_checkpoint_has_listed_files(run, tmp_path, settings, left_out):
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    rows = [line for line in page.split("## Checkpoints")[1].split("## ")[0].splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`([\w.]+)`", row.split("|")[1])}
    run(fp16=True, **settings)
    assert {path.name for path in (tmp_path / "run" / "checkpoint-2").iterdir()} == listed - left_out
