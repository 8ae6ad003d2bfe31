"""Which releases are known to compute wrong results."""

from pathlib import Path

import pytest

from mps_trainer import MachineFacts, cli
from mps_trainer.devices.known_faults import KNOWN_FAULTS, KnownFault, known_faults


@pytest.mark.parametrize(
    ("torch", "macos", "issues"),
    [
        ("2.6.0", "14.5", {165257, 183825, 191976}),
        ("2.8.0", "15.6", {161640, 163597, 174861, 183825, 191976}),
        ("2.8.0", "14.7.1", {161640, 163597, 165257, 174861, 183825, 191976}),
        ("2.9.1", "14.7", {165257, 174861, 183825, 191976}),
        ("2.10.0", "15.0", {174861, 183825, 191976}),
        ("2.10.0", "26.1", {174861, 177116, 183825, 191976}),
        ("2.11.0", "26.3", {177116, 180201, 183825, 191976}),
        ("2.12.0", "26.4", {183825, 191976}),
        ("2.13.0", "26.4", set()),
        ("2.13.0+cpu", "15.0", set()),
        ("2.8.0", "", set()),
        (None, "15.0", set()),
        ("nightly", "15.0", set()),
    ],
)
def test_a_release_has_the_faults_within_whose_bounds_it_is(torch, macos, issues):
    assert {fault.issue for fault in known_faults(torch, macos)} == issues


@pytest.mark.parametrize("fault", KNOWN_FAULTS, ids=lambda fault: str(fault.issue))
def test_each_can_end_and_says_how(fault):
    assert fault.torch_before or fault.macos_before
    assert f"(pytorch issue {fault.issue}): {fault.remedy}" in str(fault)
    assert not fault.what.endswith(".")
    assert not fault.remedy.endswith(".")


def test_bounds_are_in_order():
    assert KnownFault(1, "", "", torch_from=(2, 8), torch_before=(2, 9)).concerns((2, 8), (15, 0))
    assert not KnownFault(1, "", "", torch_from=(2, 8), torch_before=(2, 9)).concerns((2, 9), (15, 0))


@pytest.mark.parametrize(("torch", "count"), [("2.8.0", 5), ("2.13.0", 0)])
def test_doctor_names_them(torch, count, monkeypatch, capsys):
    mac = {"system": "Darwin", "machine": "arm64", "mps_built": True, "mps_available": True, "mps_allocation_ok": True}
    machine = MachineFacts(**mac, os_version="15.6", torch_version=torch)
    monkeypatch.setattr(cli.doctor, "gather_all_facts", lambda: machine)
    assert cli.main(["doctor"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.count("(pytorch issue ") == count
    for fault in known_faults(torch, "15.6"):
        assert f"- {fault.what} (pytorch issue {fault.issue})" in printed


def test_the_page_on_faults_has_all_of_them():
    page = (Path(__file__).parents[2] / "docs" / "faults.md").read_text(encoding="utf-8")
    for fault in KNOWN_FAULTS:
        assert f"| {fault.what} | {fault.remedy} |" in page
