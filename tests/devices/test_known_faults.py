"""Tests which machines are known to compute wrong results."""

import re
from pathlib import Path

import pytest

from mps_trainer.devices.known_faults import KNOWN_FAULTS, KnownFault, faults_to_warn_of, known_faults

BEFORE_2_15 = {193571}
BEFORE_2_14 = {187521, 195910, 190056, 188756, *BEFORE_2_15}
BEFORE_2_13 = {183825, 191976, *BEFORE_2_14}
BEFORE_2_11 = {170360, 174861, 176767, 184180, *BEFORE_2_13}
ON_M1 = {177116, 195163}


@pytest.mark.parametrize(
    ("torch", "macos", "chip", "issues"),
    [
        ("2.6.0", "14.5", "Apple M3", {165257, *BEFORE_2_11} - {174861, 184180}),
        ("2.8.0", "15.6", "Apple M3", {161640, 163597, 180201, *BEFORE_2_11}),
        ("2.10.0", "15.0", "Apple M4 Max", {180201, *BEFORE_2_11}),
        ("2.11.0", "26.3", "Apple M3", {176767, 180201, 184180, *BEFORE_2_13}),
        ("2.13.0", "15.5", "Apple M1", {*ON_M1, *BEFORE_2_14}),
        ("2.13.0", "15.5", "Apple M1 (Virtual)", {*ON_M1, *BEFORE_2_14}),
        *(("2.13.0", "15.5", chip, BEFORE_2_14) for chip in ("Apple M10", "VirtualApple @ 2.50GHz", None)),
        ("2.13.0+cpu", "26.5", "Apple M3 Pro", BEFORE_2_14),
        ("2.13.0", "26.5", "Apple M5 Max", {180776, *BEFORE_2_14}),
        ("2.13.0", "26.0", "Apple M1 Max", {*ON_M1, 192934, *BEFORE_2_14}),
        ("2.13.0", "27.0", "Apple M1", {*ON_M1, 180201, 197796, *BEFORE_2_14}),
        ("2.14.0", "26.6", "Apple M1", {195163, 192934, *BEFORE_2_15}),
        ("2.14.1", "26.6", "Apple M1", {195163, *BEFORE_2_15}),
        ("2.15.0", "26.6", "Apple M2 Pro", {195163}),
        ("2.15.0", "27.0", "Apple M4", {180201}),
        ("2.8.0", "", "Apple M1", set()),
        (None, "15.0", "Apple M1", set()),
    ],
)
def test_a_machine_has_the_faults_within_whose_bounds_it_is(torch, macos, chip, issues):
    assert {fault.issue for fault in faults_to_warn_of(torch, macos, chip)} == issues


@pytest.mark.parametrize(
    ("torch", "macos", "issues"),
    [
        ("2.9.0", "14.5", {9510, 194082}),
        ("2.10.0", "14.5", {175191, 189565, 9510, 194082}),
        ("2.12.0", "26.6", {175191, 189565, 9510, 194082, 189495, 192212}),
        ("2.13.0", "14.5", {189565, 9510, 194082, 189495}),
        ("2.15.0", "26.6", set()),
    ],
)
def test_faults_that_no_ordinary_run_meets_are_known_without_a_warning(torch, macos, issues):
    silent = set(known_faults(torch, macos)) - set(faults_to_warn_of(torch, macos))
    in_any = {195404, 127676, 197636, 189960, 190791, 197805, 3267}
    assert {fault.issue for fault in silent} == issues | in_any


@pytest.mark.parametrize("fault", KNOWN_FAULTS, ids=lambda fault: str(fault.issue))
def test_each_is_bounded_or_harmless_and_says_what_to_do(fault):
    assert fault.torch_before or fault.macos_before or fault.macos_from or fault.chips or not fault.warns
    assert str(fault) == f"{fault.what} ({fault.repository.split('/')[1]} issue {fault.issue}): {fault.remedy}"
    assert not fault.what.endswith(".")
    assert not fault.remedy.endswith(".")


# The page says once: "Update torch or macOS to the end of the range, or use the workaround."
UPDATE = re.compile(
    r"^(update macOS to [\d.]+ or later, or )?install torch [\d.]+ or later(, which raises an error)?(, or |; |$)"
)


def link(fault: KnownFault) -> str:
    return f"[{fault.issue}](https://github.com/{fault.repository}/issues/{fault.issue})"


def row(fault: KnownFault) -> str:
    """The fault as a row of the table in docs/faults.md."""
    torch = _range("torch", fault.torch_from, fault.torch_before)
    macos = _range("macOS", fault.macos_from, fault.macos_before)
    where = "; ".join(filter(None, [torch, macos, ", ".join(fault.chips)])) or "any"
    return f"| {link(fault)} | {where} | {fault.what} | {UPDATE.sub('', fault.remedy)} |"


def _range(name, first, before) -> str:
    texts = [None if bound is None else ".".join(map(str, bound)) for bound in (first, before)]
    if texts == [None, None]:
        return ""
    if all(texts):
        return f"{name} {texts[0]} to before {texts[1]}"
    return f"{name} from {texts[0]}" if texts[0] else f"{name} before {texts[1]}"


def test_the_page_on_faults_has_all_of_them():
    page = (Path(__file__).parents[2] / "docs" / "faults.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| [")]
    assert rows == [row(fault) for fault in KNOWN_FAULTS if fault.warns]
    assert [fault.issue for fault in KNOWN_FAULTS if link(fault) not in page] == []
