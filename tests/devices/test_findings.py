"""Tests the findings about a machine and their order. All are computed from facts."""

import configparser
import re
from dataclasses import replace
from pathlib import Path

import pytest

from mps_trainer.cli.doctor import status
from mps_trainer.cli.screen import screen
from mps_trainer.devices.findings import CHECKS, MINIMUM_TORCH, MINIMUM_TRANSFORMERS, NOTE, SEVERITIES, findings
from tests.devices.diagnosed import DIAGNOSED, FACTS, FALLBACK, HIGH, LOW
from tests.devices.machines import MACHINES, mac


@pytest.mark.parametrize("row", DIAGNOSED.values(), ids=DIAGNOSED)
def test_the_first_remedy_is_the_one_that_gains_most(row):
    found = findings(row.facts)
    assert " ".join(finding.name for finding in found) == row.findings
    assert row.remedy in (found[0].remedy if found else "")
    assert status(row.facts) == row.status
    first = " ".join(screen(row.facts).split("\n\n")[0].split())
    if found and found[0].severity != NOTE:
        assert first == f"Do this first: {found[0].remedy}"
    else:
        assert first.startswith("Nothing to fix. Training runs on ")


def test_every_finding_is_found_on_some_machine():
    source = Path(CHECKS[0].__code__.co_filename).read_text(encoding="utf-8")
    names = set(re.findall(r'Finding\(\s*"([a-z-]+)"', source))
    assert len(names) > 15
    assert names <= {name for row in DIAGNOSED.values() for name in row.findings.split()}


@pytest.mark.parametrize(
    ("machine", "reason", "remedy"),
    [
        ("bitsandbytes on macOS 15", "they need macOS 26", "load_mlx_model"),
        ("bitsandbytes on a newer torch", "they exist for torch 2.10 to 2.12", "load_mlx_model"),
        (
            "bitsandbytes without kernels",
            "the package kernels, which is not installed",
            "python -m pip install kernels",
        ),
    ],
)
def test_bitsandbytes_without_metal_kernels_is_named_with_its_reason_and_remedy(machine, reason, remedy):
    finding = findings(DIAGNOSED[machine].facts)[-1]
    assert reason in finding.what
    assert remedy in finding.remedy


@pytest.mark.parametrize("name", FACTS)
def test_findings_are_in_order_and_say_what_to_do(name):
    found = findings(FACTS[name])
    ranks = [SEVERITIES.index(finding.severity) for finding in found]
    assert ranks == sorted(ranks)
    assert len({finding.name for finding in found}) == len(found)
    for finding in found:
        for clause in (finding.what, finding.remedy):
            assert clause
            assert not clause.endswith(".") or clause.endswith("pool.")
            assert "\n" not in clause


@pytest.mark.parametrize("name", FACTS)
def test_the_screen_of_any_machine_fits_into_any_terminal(name):
    for width, columns in ((80, 80), (1, 60), (60, 60), (100, 100), (400, 100)):
        lines = screen(FACTS[name], width).splitlines()
        assert len(lines) <= 40
        assert max(map(len, lines)) <= columns
        assert all(line.isprintable() for line in lines)


def test_what_does_not_fit_is_counted():
    facts = replace(  # a Mac with as many findings as one can have
        DIAGNOSED["an old mac in disorder"].facts,
        environment={FALLBACK: "1", HIGH: "0", LOW: "little", "PYTORCH_MPS_FAST_MATH": "1"},
        fallback_when_torch_loaded=False,
        world_size=2,
        torch_version="2.5.1",
    )
    found, lines = findings(facts), screen(facts, 60).splitlines()
    shown = [line for line in lines if re.match(r"\d+\. (error|warning|note): ", line)]
    assert len(lines) <= 40
    assert lines[-1] == f"And {len(found) - len(shown)} more, with --json."
    assert 4 <= len(shown) < len(found)


def test_of_many_faults_the_first_are_shown_and_the_others_counted():
    facts = mac("15.5", "2.8.0", chip="Apple M1")
    (finding,) = (found for found in findings(facts) if found.name == "wrong-results")
    lines = screen(facts).splitlines()
    shown = [line for line in lines if line.startswith("   - ")]
    assert 1 < len(shown) < len(finding.details)
    assert "177116" in " ".join(lines)
    assert shown[-1] == f"   - {len(finding.details) - len(shown) + 1} more, which --json lists"


@pytest.mark.parametrize(
    ("torch", "macos", "chip", "is_silent"),
    [
        ("2.8.0", "15.5", "Apple M1", True),  # doctor does not show many faults there
        ("2.14.1", "26.0", "Apple M4 Max", True),
        ("2.15.0", "27.0", "Apple M1", False),
    ],
)
def test_doctor_says_where_failed_commands_of_the_gpu_are_silent(torch, macos, chip, is_silent):
    printed = " ".join(screen(mac(macos, torch, chip=chip)).split())
    said = "is known to compute wrong results, and says nothing when a command fails on the GPU."
    assert (said in printed) == is_silent
    assert ("'torch>=2.15'" in printed) == is_silent


def test_a_command_is_on_one_line_and_each_other_device_is_explained_once():
    printed = screen(DIAGNOSED["conda for x86"].facts)
    assert "CONDA_SUBDIR=osx-arm64 conda create -n native python=3.11" in printed
    assert "conda config --env --set subdir osx-arm64" in printed
    for name in ("m1_macos_13_torch_2.8", "m3_torch_broken", "linux_torch_missing", "m2_macos_14"):
        assert re.search(r"python -m pip install (--force-reinstall )?(-U )?\S*torch", screen(MACHINES[name]))
    launcher = "unset WORLD_SIZE RANK LOCAL_RANK LOCAL_WORLD_SIZE MASTER_PORT MASTER_ADDR"
    assert launcher in screen(DIAGNOSED["torchrun on a mac"].facts)
    printed = " ".join(screen(MACHINES["m3_sandboxed"]).split())
    assert "not mps see 1 not cuda CUDA does not exist on macOS not xpu torch has no XPU build for macOS 1." in printed
    assert printed.count("gives this process no Metal device") == 1


LIMITS = "fail above {} GiB ({} % of Metal's recommendation, {}); unused memory is freed above {} %"


@pytest.mark.parametrize(
    ("environment", "loaded_with", "said"),
    [
        ({}, False, "fallback off: an operator without a kernel for mps is an error"),
        ({FALLBACK: "1"}, True, "fallback on, set in time"),
        ({FALLBACK: "1"}, False, "fallback off: PYTORCH_ENABLE_MPS_FALLBACK was set too late"),
        ({}, False, LIMITS.format("12.0", 100, "memory_fraction", 82)),
        ({HIGH: "0.5"}, False, LIMITS.format("6.0", 50, HIGH, 41)),
        ({HIGH: "0"}, False, f"limits none ({HIGH})"),
    ],
)
def test_the_screen_says_how_the_switch_stands_and_what_limits_memory(environment, loaded_with, said):
    memory = {"recommended_bytes": 12 * 1024**3}
    facts = mac("15.5", "2.15.0", environment=environment, fallback_when_torch_loaded=loaded_with, **memory)
    assert said in " ".join(screen(facts).split())


def test_the_oldest_versions_are_those_of_the_package():
    config = configparser.ConfigParser()
    config.read(Path(__file__).parents[2] / "setup.cfg")
    requires = config["options"]["install_requires"]
    for package, minimum in (("torch", MINIMUM_TORCH), ("transformers", MINIMUM_TRANSFORMERS)):
        assert re.search(rf"^{package}>={minimum[0]}\.{minimum[1]},<{minimum[0] + 1}$", requires, re.MULTILINE)
