"""The table and the JSON, from results alone. All figures here are made up."""

import copy
import json
from dataclasses import replace

import msgspec
import pytest

from mps_trainer import MachineFacts
from mps_trainer.tools.speed import Measured, SpeedReport, WorkloadResult
from mps_trainer.tools.speed.results import duration
from tests.conftest import refusal

GIB = 2**30
FACTS = MachineFacts(
    system="Darwin", os_version="15.5", machine="arm64", chip="Apple M4", memory_bytes=16 * GIB, virtual_machine=False
)
OURS, THEIRS = Measured((0.4, 0.42, 0.41), 3 * GIB), Measured((0.5, 0.5, 0.55), 6 * GIB)
LORA = WorkloadResult("LoRA", "in full", True, "transformers", OURS, THEIRS, 2 * GIB, "mlx-tune: 2.2 steps/s")
ATTENTION = WorkloadResult(
    "attention", "4,096 tokens", False, "torch", Measured((0.08, 0.12)), Measured((0.1, 0.1)), published="mps-sdpa"
)
OPERATOR = WorkloadResult("an operator", "adds", False, "torch", None, Measured((1.234e-5,)))
# A Mac that was made up. The JSON of `mps-trainer speed` has these fields.
REPORT = SpeedReport(
    device="mps", simulated=False, quick=False, smaller=False, date="2026-01-31",
    versions={"mps_trainer": "0.1.0", "torch": "2.15.0", "transformers": "5.23.0"}, facts=FACTS.to_dict(),
    unjudged=(), workloads=(LORA, ATTENTION, OPERATOR), seconds=301.2,
)  # fmt: skip
SHOWN = """\
### mps-trainer speed: Apple M4, 16.0 GiB of memory, macOS 15.5

Device: mps. 2026-01-31, 301 s. mps_trainer 0.1.0, torch 2.15.0, transformers 5.23.0.

| a step of training | mps_trainer | transformers | time relative to transformers | peak memory (transformers) | \
`fit` says | published elsewhere |
| --- | ---: | ---: | ---: | ---: | ---: | --- |
| LoRA (in full) | 410 ms, 2.44 steps/s | 500 ms, 2 steps/s | 0.80 (0.75 to 0.84, 3 rounds) | 3.0 GiB (6.0 GiB) | \
2.0 GiB | mlx-tune: 2.2 steps/s |

| an operation | mps_trainer | torch | time relative to torch | published elsewhere |
| --- | ---: | ---: | ---: | --- |
| attention (4,096 tokens) | 100 ms | 100 ms | 1.00 (0.80 to 1.20, 2 rounds) | mps-sdpa |
| an operator (adds) | – | 12.3 µs | – | – |

Verdict: mps_trainer is faster in every round (LoRA); the difference is within the spread (attention)."""


def test_a_described_mac_as_it_is_pasted():
    assert str(REPORT) == SHOWN


def test_a_machine_that_is_not_quiet_gets_times_and_no_comparison():
    report = replace(REPORT, unjudged=("the machine is hot", "Low Power Mode is on"))
    lines = str(report).splitlines()
    assert lines[-1] == "Not judged: the machine is hot; Low Power Mode is on."
    assert "410 ms" in str(report)
    assert "rounds)" not in str(report)
    assert "faster" not in str(report)


def test_a_simulated_device_and_smaller_sizes_are_named():
    report = replace(REPORT, simulated=True, smaller=True, quick=True)
    text = str(report)
    assert text.startswith("### mps-trainer speed --quick: ")
    assert "\nDevice: mps, SIMULATED on the CPU. " in text
    assert "\nThe sizes in the rows are smaller than the real ones, because no GPU computed." in text
    assert "smaller" not in str(REPORT)


def test_a_virtual_machine_is_named():
    assert ", a virtual machine\n" in str(replace(REPORT, facts={**REPORT.facts, "virtual_machine": True}))


@pytest.mark.parametrize(
    ("ours", "theirs", "comparison"),
    [
        ((0.9, 0.9), (1.0, 1.0), "faster"),
        ((1.1, 1.2), (1.0, 1.0), "slower"),
        ((0.9, 1.1), (1.0, 1.0), "within the spread"),
        ((0.5,), (1.0,), None),  # one round has no spread
        ((), (1.0, 1.0), None),
        ((0.4, 0.7), (1.0, 1.0), None),  # unsteady
        ((0.4, 0.4), (1.0, 1.6), None),
    ],
)
def test_a_side_wins_if_it_wins_in_every_round(ours, theirs, comparison):
    assert replace(LORA, ours=Measured(ours), theirs=Measured(theirs)).comparison == comparison


def test_unsteady_rounds_are_named_and_not_compared():
    report = replace(REPORT, workloads=(replace(LORA, ours=Measured((0.2, 0.4, 0.4))),))
    assert "LoRA is not compared: one round took 2.0 times as long." in str(report)
    assert "| – | – (6.0 GiB) |" in str(report)
    assert report.verdict == "Verdict: nothing was compared."


def test_failures_are_named_and_a_lack_of_memory_is_none_of_this_package():
    no_memory = Measured(failure="RuntimeError: MPS backend out of memory", out_of_memory=True)
    broken = Measured(failure="TypeError: no bf16")
    for side, status in ((no_memory, True), (broken, False)):
        assert replace(REPORT, workloads=(replace(LORA, ours=side), OPERATOR)).passed is status
        assert replace(REPORT, workloads=(replace(LORA, theirs=side), OPERATOR)).passed
    text = str(replace(REPORT, workloads=(replace(LORA, ours=broken, theirs=no_memory),)))
    assert "| failed | out of memory | – | – | 2.0 GiB |" in text
    assert "LoRA, mps_trainer: TypeError: no bf16.\nLoRA, transformers: RuntimeError: MPS backend out of" in text
    skipped = replace(LORA, ours=None, theirs=Measured(), skipped="peft is not installed")
    assert "LoRA was not tried: peft is not installed." in str(replace(REPORT, workloads=(skipped,)))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.5678, "4.57 s"), (123.4, "123 s"), (4321.0, "4,321 s"), (0.04, "40 ms"), (0.9994, "999 ms"), (2e-7, "0.2 µs")],
)
def test_durations_have_three_digits(seconds, text):
    assert duration(seconds) == text


def as_json(report):
    return json.loads(json.dumps({"generator": "mps_trainer", **report.to_dict()}))


def test_the_file_is_read_back_as_it_was_written():
    skipped = replace(LORA, ours=None, theirs=Measured(), skipped="peft is not installed")
    for report in (REPORT, replace(REPORT, workloads=(skipped,), unjudged=("hot",))):
        assert SpeedReport.from_dict(as_json(report)) == report


def test_the_file_follows_its_schema():
    jsonschema = pytest.importorskip("jsonschema")  # nbformat brings it
    schema = msgspec.json.schema(SpeedReport)
    jsonschema.validate(as_json(REPORT), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**as_json(REPORT), "seconds": "long"}, schema)


def set_in(data, path, value):
    """Sets the value at a path such as ("workloads", 0, "name"); an Ellipsis deletes it."""
    for key in path[:-1]:
        data = data[key]
    if value is ...:
        del data[path[-1]]
    else:
        data[path[-1]] = value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("device",), ...),
        (("workloads", 0, "theirs"), ...),
        (("workloads", 0, "ours", "out_of_memory"), ...),  # it has a default, and is written all the same
        (("workloads", 0, "name"), 7),
        (("workloads", 0, "more"), 7),
        (("more",), None),
        (("workloads", 0, "ours", "seconds"), [0.1, "fast"]),
        (("workloads", 0, "ours", "seconds"), [0.1, 0]),
        (("workloads", 2, "theirs", "seconds"), [-1.0]),
        (("workloads", 2, "theirs", "seconds"), [float("nan")]),
        (("workloads", 2, "theirs", "seconds"), [float("inf")]),
        (("versions",), {"torch": 2.15}),
        (("workloads",), {}),
    ],
)
def test_another_file_is_refused_in_one_line(path, value):
    data = copy.deepcopy(as_json(REPORT))
    set_in(data, path, value)
    assert refusal(SpeedReport.from_dict, data).startswith("This is not a report of mps-trainer speed: ")


@pytest.mark.parametrize("data", [None, [], "speed", {}])
def test_no_object_is_refused(data):
    assert "not a report" in refusal(SpeedReport.from_dict, data)
