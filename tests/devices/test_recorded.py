"""Files of facts: what is taken, and what is refused in one line."""

import json

import pytest

from mps_trainer import MachineFacts, __version__
from mps_trainer.devices.recorded import read_facts
from mps_trainer.utils.bounded_file import MOST_BYTES
from tests.conftest import refusal
from tests.devices.machines import MACHINES, under_torchrun

LINUX = {"system": "Linux"}


def refused(path) -> str:
    message = refusal(read_facts, str(path))
    assert message.startswith(f"--facts {path}: ")
    assert "doctor --json" in message
    return message


def write(tmp_path, content):
    path = tmp_path / "facts.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"system": "Linux"', "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b'{"system": "Linux", "cuda_count": ' + b"9" * 5000 + b"}", "it is not JSON"),
        (b" " * (MOST_BYTES + 1), "it has more than 1,000,000 bytes"),
        ([], "it holds no facts (Expected `object`, got `array`)"),
        ({}, 'it has no "system"'),
        ({"facts": LINUX, "mps_trainer": 1}, "got `int` - at `$.mps_trainer`"),
        ({**LINUX, "cuda_count": -1}, 'its "cuda_count" is -1, and should be at least 0'),
        ({**LINUX, "environment": {"RANK": 1}}, "Expected `str`, got `int` - at `$.facts.environment[...]`"),
        ({**LINUX, "\ud800": 1}, "it holds no facts ("),
        ({**LINUX, "macos": "15.5"}, f'it has "macos", which mps_trainer {__version__} does not know'),
        ({"facts": {**LINUX, "macos": ""}, "mps_trainer": __version__}, 'it has "macos"'),
        ({**LINUX, **{f"key{i}": 0 for i in range(9)}}, '"key4" and 4 more'),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_is_no_machine_is_refused(content, said, tmp_path):
    assert said in refused(write(tmp_path, content))


def test_a_file_that_is_not_there_or_is_none(tmp_path):
    assert "there is no such file" in refused(tmp_path / "gone.json")
    assert "it cannot be read (Is a directory)" in refused(tmp_path)
    assert "it is not JSON" in refused("/dev/null")
    assert "it is not JSON" in refused(write(tmp_path, b"\0"))
    assert "--facts" in refusal(read_facts, "a\0b")
    assert "--facts" in refusal(read_facts, "x" * 5000)


@pytest.mark.parametrize("machine", MACHINES)
def test_facts_alone_and_in_a_report(machine, tmp_path):
    expected = under_torchrun(MACHINES[machine], 2)
    facts = expected.to_dict()
    for content in (facts, {"facts": facts}, {"mps_trainer": "0.0.1", "decision": {}, "facts": facts}):
        path = write(tmp_path, content)
        by = ", written by mps_trainer 0.0.1" if "mps_trainer" in content else ""
        assert read_facts(str(path)) == (expected, f"in {path}{by}")


def test_unknown_keys_of_a_newer_version_are_told_and_missing_ones_have_their_defaults(tmp_path):
    path = write(tmp_path, {"facts": {**LINUX, "fans": 2}, "mps_trainer": f"{__version__}.1"})
    facts, source = read_facts(str(path))
    assert facts == MachineFacts()
    assert source.endswith(f'{__version__}.1; left out, unknown to {__version__}: "fans"')
    assert read_facts(str(write(tmp_path, b"\xef\xbb\xbf" + json.dumps(LINUX).encode())))[0] == MachineFacts()
