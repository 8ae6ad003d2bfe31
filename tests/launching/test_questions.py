"""Tests which questions each machine asks, and how answers are stored."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mps_trainer import DeviceRequest, resolve
from mps_trainer.launching.questions import ask_settings
from mps_trainer.launching.settings import LaunchSettings

from .test_processes import GPUS, MAC, PC


@pytest.fixture
def answering(monkeypatch, capsys):
    """Returns the settings, the offered answers in the order of the prompts, and the printed lines."""

    def answer(facts, *answers, proposed=None):
        offered, left = [], list(answers)
        monkeypatch.setattr("builtins.input", lambda prompt: offered.append(prompt) or left.pop(0))
        settings = ask_settings(resolve(DeviceRequest(), facts), facts, proposed or LaunchSettings())
        assert not left
        return settings, offered, capsys.readouterr().out.splitlines()

    return answer


def offers(prompts):
    return [prompt.split("[")[1].removesuffix("]: ") for prompt in prompts]


def test_a_mac_asks_for_fallback_and_memory_and_takes_enter(answering):
    settings, prompts, printed = answering(MAC, "", "", "", "")
    assert settings == LaunchSettings("auto", "no", False, 1, None)
    assert "auto takes mps here" in prompts[0]
    assert offers(prompts) == ["auto", "no", "no", "none"]
    assert printed == ["One process, because a Mac has one GPU. `mps-trainer launch --hosts` trains on several Macs."]
    assert answering(MAC, "mps", "bf16", "yes", "0.8")[0] == LaunchSettings("mps", "bf16", True, 1, 0.8)


def test_other_devices_ask_for_processes_instead(answering):
    settings, prompts, _ = answering(GPUS, "", "", "2")
    assert settings == LaunchSettings("auto", "no", False, 2, None)
    assert offers(prompts) == ["auto", "no", "1"]
    assert answering(MAC, "cpu", "", "4")[0] == LaunchSettings("cpu", "no", False, 4, None)


@pytest.mark.parametrize(
    ("facts", "answers", "says"),
    [
        (PC, ("gpu", "", "", ""), "'gpu' is not valid: device is one of auto"),
        (PC, ("mps", "", "", ""), "mps cannot run here: this machine runs Linux"),
        (
            replace(MAC, os_version="13.6", torch_version="2.8.0"),
            ("", "bf16", "", "", ""),
            "mps does not compute in bf16 here.",
        ),
        (GPUS, ("", "", "3", ""), "Take at most 2"),
    ],
)
def test_an_invalid_answer_is_explained_and_asked_again(answering, facts, answers, says):
    _, prompts, printed = answering(facts, *answers)
    assert says in printed[0]
    again = next(i for i, prompt in enumerate(prompts) if prompt in prompts[:i])
    assert prompts[again] == prompts[again - 1]


def test_proposed_settings_are_taken_with_enter_where_they_can_run(answering):
    proposed = LaunchSettings("mps", "bf16", True, 1, 0.75)
    settings, prompts, _ = answering(MAC, "", "", "", "", proposed=proposed)
    assert settings == proposed
    assert offers(prompts) == ["mps", "bf16", "yes", "0.75"]
    assert answering(MAC, "", "", "", "none", proposed=proposed)[0].memory_fraction is None
    _, _, printed = answering(PC, "", "auto", "", "", proposed=LaunchSettings("mps"))
    assert printed[0].startswith("  mps cannot run here")
