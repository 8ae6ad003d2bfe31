"""constraints.txt and the scripts that write and check it."""

import sys
import types
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import ROOT

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
MACHINES = {"darwin": "arm64", "linux": "x86_64"}


def script(name: str) -> types.ModuleType:
    """A script of .ci as a module; no bytecode of it is left there."""
    module = sys.modules[f"ci_{name}"] = types.ModuleType(f"ci_{name}")  # @dataclass looks it up there
    module.__file__ = str(ROOT / ".ci" / name)
    exec(compile(Path(module.__file__).read_text(encoding="utf-8"), module.__file__, "exec"), module.__dict__)
    return module


LOCK, RESOLVE = script("lock"), script("resolve")


def pins(python: str, system: str) -> dict[str, str]:
    """The package and version of each line of constraints.txt that applies there."""
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": system,
        "platform_system": system.title(),
        "platform_machine": MACHINES[system],
    }
    found: dict[str, str] = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        pin = Requirement(line)
        if pin.marker is None or pin.marker.evaluate(environment):
            (version,) = pin.specifier
            assert version.operator == "=="
            assert canonicalize_name(pin.name) not in found, f"{pin.name} is pinned twice"
            found[canonicalize_name(pin.name)] = version.version
    return found


@pytest.mark.parametrize("system", MACHINES)
@pytest.mark.parametrize("python", PYTHONS)
def test_each_python_has_one_pin_of_all_that_setup_cfg_asks_for(python, system):
    found = pins(python, system)
    asked = RESOLVE.requirements((ROOT / "setup.cfg").read_text(encoding="utf-8"), LOCK.EXTRAS.split(","))
    assert len(asked) > 20
    for requirement in map(Requirement, asked):
        version = found[canonicalize_name(requirement.name)]
        assert version in requirement.specifier, f"{requirement} and =={version}"
    assert int(found["soupsieve"].split(".")[0]) < 3  # 3 and later refuse Python 3.11.0 to 3.11.4


COMPILED = """\
# by uv
-e .
colorama==0.4.6 ; sys_platform == 'win32'
cffi==2.1.1 ; implementation_name == 'pypy'
httpx2==2.14.0 ; python_full_version < '3.11' and sys_platform != 'emscripten'
httpx2==2.16.2 ; python_full_version >= '3.11' and sys_platform != 'emscripten'
nvidia-nccl-cu13==2.30.7 ; sys_platform == 'linux'
six==1.17.0 ; python_full_version < '3.11'
torch==2.15.0
triton==3.9.0 ; sys_platform == 'linux'
"""


def test_a_marker_stays_only_where_a_package_has_two_versions():
    text = LOCK.constraints(COMPILED)
    assert text.startswith(LOCK.HEAD)
    assert text.removeprefix(LOCK.HEAD).splitlines() == [
        "httpx2==2.14.0 ; python_full_version < '3.11'",
        "httpx2==2.16.2 ; python_full_version >= '3.11'",
        "six==1.17.0",
        "torch==2.15.0",
    ]


def test_constraints_are_what_the_script_writes():
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert text == LOCK.constraints(text)


def test_the_commands_are_readmes_and_the_pythons_those_of_the_classifiers():
    assert RESOLVE.install_commands((ROOT / "README.md").read_text(encoding="utf-8")) == [
        ["-c", "constraints.txt", "-e", ".[examples]"],
        ["-c", "constraints.txt", "-e", ".[examples,docs,dev]"],
    ]
    assert RESOLVE.pythons((ROOT / "setup.cfg").read_text(encoding="utf-8")) == list(PYTHONS)


def test_the_exit_status_says_whether_all_resolve():
    assert RESOLVE.main(["3.14"], lambda *_: RESOLVE.Outcome(143, 0.5)) == 0
    assert RESOLVE.main(["3.10"], lambda *_: RESOLVE.Outcome(0, 0.5, "No solution found")) == 1
