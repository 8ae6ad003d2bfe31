"""Tests which questions each machine asks, and how answers are stored."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mps_trainer import DeviceRequest, resolve
from mps_trainer.launching.questions import questionnaire
from mps_trainer.launching.settings import LaunchSettings

from .test_processes import GPUS, MAC, PC


def answering(facts, *answers, proposed=None):
    """The settings, the prompts, and what was told."""
    asked, told, left = [], [], list(answers)

    def ask(prompt):
        asked.append(prompt)
        return left.pop(0)

    decision = resolve(DeviceRequest(), facts)
    settings = questionnaire(decision, facts, proposed or LaunchSettings(), ask, told.append)
    assert not left
    return settings, asked, told


def test_on_a_mac_enter_is_enough():
    settings, asked, told = answering(MAC, "", "", "", "")
    assert settings == LaunchSettings("auto", "no", False, 1, None)
    assert "auto takes mps here [auto]: " in asked[0]
    assert [prompt.split("[")[1] for prompt in asked[1:]] == ["no]: ", "no]: ", "none]: "]
    assert told == ["One process, because a Mac has one GPU, which torch.distributed does not support."]


def test_on_a_mac_everything_can_be_answered():
    settings, _, _ = answering(MAC, "mps", "bf16", "yes", "0.8")
    assert settings == LaunchSettings("mps", "bf16", True, 1, 0.8)


def test_elsewhere_processes_are_asked_for_and_what_is_for_mps_is_not():
    settings, asked, _ = answering(GPUS, "", "", "2")
    assert settings == LaunchSettings("auto", "no", False, 2, None)
    assert len(asked) == 3
    assert answering(MAC, "cpu", "", "4")[0] == LaunchSettings("cpu", "no", False, 4, None)


@pytest.mark.parametrize(
    ("facts", "answers", "says"),
    [
        (PC, ("gpu", "", "", ""), "'gpu' is not valid: device is one of auto"),
        (PC, ("mps", "", "", ""), "mps cannot run here: this machine runs Linux"),
        (PC, ("", "half", "", ""), "mixed_precision is one of no, fp16, bf16"),
        (
            replace(MAC, os_version="13.6", torch_version="2.8.0"),
            ("", "bf16", "", "", ""),
            "mps does not compute in bf16 here.",
        ),
        (GPUS, ("", "", "3", ""), "Take at most 2"),
        (GPUS, ("", "", "many", ""), "num_processes is a whole number"),
        (MAC, ("", "", "perhaps", "", ""), "mps_fallback is true or false (yes or no)"),
        (MAC, ("", "", "", "80%", ""), "memory_fraction is a number from 0"),
    ],
)
def test_an_answer_that_will_not_do_is_explained_and_asked_again(facts, answers, says):
    _, asked, told = answering(facts, *answers)
    assert says in told[0]
    at = next(i for i, prompt in enumerate(asked) if prompt in asked[:i])
    assert asked[at] == asked[at - 1]


def test_what_is_proposed_stands_for_enter():
    proposed = LaunchSettings("mps", "bf16", True, 1, 0.75)
    settings, asked, _ = answering(MAC, "", "", "", "", proposed=proposed)
    assert settings == proposed
    assert [prompt.split("[")[1] for prompt in asked] == ["mps]: ", "bf16]: ", "yes]: ", "0.75]: "]
    assert answering(MAC, "", "", "", "none", proposed=proposed)[0].memory_fraction is None


def test_what_is_proposed_and_cannot_be_here_is_explained_too():
    _, _, told = answering(PC, "", "auto", "", "", proposed=LaunchSettings("mps"))
    assert told[0].startswith("  mps cannot run here")
