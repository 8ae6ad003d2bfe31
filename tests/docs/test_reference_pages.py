"""The reference pages have every public name, argument, command and check."""

import dataclasses
import importlib
import inspect
import re

import pytest

from mps_trainer import TrainingArguments
from mps_trainer.cli import COMMANDS, _parser
from mps_trainer.selftest import CHECKS, CheckResult
from mps_trainer.tools.selftest.numbers import TOLERANCES
from mps_trainer.tools.selftest.results import table as table_of_checks
from mps_trainer.tools.speed import WORKLOADS
from mps_trainer.tools.speed.results import OPERATIONS_HEAD, TRAINING_HEAD

from .pages import ROOT, all_blocks

API, COMMANDS_PAGE, SELFTEST = (
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("api", "commands", "selftest")
)
PUBLIC = ("mps_trainer", "mps_trainer.check", "mps_trainer.export", "mps_trainer.simulator", "mps_trainer.selftest")
NAMES = {module.__name__.rpartition(".")[2] for module in COMMANDS}


def listed() -> set[str]:
    """Returns the objects of the directives, with their modules."""
    found, module = set(), "mps_trainer"
    for line in API.splitlines():
        if (current := re.match(r"\.\. currentmodule:: (\S+)", line)) is not None:
            module = current[1]
        elif (directive := re.match(r"\.\. (?:auto\w+|py:data):: (\S+)", line)) is not None:
            name = directive[1]
            found.add(name if name.startswith("mps_trainer.") else f"{module}.{name}")
    return found


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_listed(module):
    names = {f"{module}.{name}" for name in importlib.import_module(module).__all__ if name != "__version__"}
    assert names - listed() == set()


@pytest.mark.parametrize("name", sorted(listed()))
def test_listed_names_exist_with_docstrings(name):
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(module), attribute)
    assert inspect.getdoc(found) if not inspect.isclass(found) else found.__doc__


def test_fields_are_in_one_table_each_with_defaults_and_help_or_their_successors(extension):
    table = extension("arguments_table")
    current, old = [row for rows in table.groups().values() for row in rows], table.deprecated()
    names = [row.name for row in (*current, *old)]
    assert sorted(names) == sorted(field.name for field in dataclasses.fields(TrainingArguments))
    rows = {row.name: row for row in current}
    for field in dataclasses.fields(TrainingArguments):
        if field.name in rows:
            missing = field.default is dataclasses.MISSING
            assert rows[field.name].default == repr(field.default_factory() if missing else field.default)
            assert rows[field.name].help == field.metadata["help"]
            assert rows[field.name].help
    instead = {row.name: row.help for row in old}
    assert instead["no_cuda"] == "use use_cpu."
    assert "Deprecated" not in " ".join(instead.values())


def test_commands_have_sections_with_the_options_of_help(extension):
    page = {command.name: command for command in extension("commands_table").commands()}
    assert page.keys() == {"", *NAMES}
    (below,) = (action for action in _parser()._actions if action.dest == "command")
    for name, parser in below.choices.items():
        shown = {flag for called, _ in page[name].options for flag in re.findall(r"--?[a-z][\w-]*", called)}
        lines = [line.split("  ")[0] for line in re.findall(r"^  (-.*)$", parser.format_help(), re.MULTILINE)]
        listed = {flag for line in lines for flag in re.findall(r"(?:^|, )(--?[a-z][\w-]*)", line)}
        assert shown == listed - {"-h", "--help"}
    texts = [text for command in page.values() for _, text in command.options]
    assert texts
    assert not [text for text in texts if "%" in text]
    assert "(default: 1)" in dict(page["check"].options)["--batches BATCHES"]


def test_commands_are_in_the_table():
    table = COMMANDS_PAGE.split("| `mps-trainer` |")[1].split("\n\n")[0]
    first = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert set(re.findall(r"`(\w+)", " ".join(first))) == NAMES


def test_checks_are_described_and_shown_with_their_tolerances():
    rows = SELFTEST.split("## Checks")[1].split("\n## ")[0]
    named = [name for row in re.findall(r"^\| (`.*?`) \|", rows, re.MULTILINE) for name in re.findall(r"`(.*?)`", row)]
    assert named == list(CHECKS)
    (screen,) = all_blocks(kind="selftest")
    heading = table_of_checks([CheckResult(name, "passed", "", 0.0) for name in CHECKS])[0]
    rows = screen.text.split(f"\n{heading}\n")[1].split("\n\n")[0]
    width = heading.index("result")
    assert [line[:width].strip() for line in rows.splitlines() if line[:width].strip()] == list(CHECKS)
    rows = SELFTEST.split("## Tolerances")[1].split("\n## ")[0]
    allowed = {float(value) for value in re.findall(r"\| (\d+e-\d+) \|$", rows, re.MULTILINE)}
    assert allowed == {tolerance.relative for tolerance in TOLERANCES.values()}


def test_workloads_are_described_and_shown():
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8").split("## On your Mac")[1].split("\n## ")[0]
    described = [line.split("|") for line in page.split("| row |")[1].split("\n\n")[0].splitlines()[2:]]
    figures = {name.strip(): cells[3] for cells in described for name in cells[1].split(",")}
    names = [workload.name.partition(",")[0].removesuffix(" to the device") for workload in WORKLOADS]
    assert list(figures) == names
    for name, workload in zip(names, WORKLOADS, strict=True):
        for figure in re.findall(r"\d+(?:\.\d+)?", (workload.published or "").rpartition(": ")[2]):
            assert figure in figures[name], name
    (shown,) = all_blocks(kind="speed")
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown.text.splitlines() if line[:1] == "|"]
    assert [line for line in lines if tuple(line) in (TRAINING_HEAD, OPERATIONS_HEAD)] == [
        [*TRAINING_HEAD],
        [*OPERATIONS_HEAD],
    ]
    quick = [f"{each.name} ({each.smaller or each.sizes})" for each in WORKLOADS if each.in_quick]
    assert [line[0] for line in lines if line[0] in quick] == quick
    assert len(lines) == len(quick) + 4
    assert "SIMULATED" in shown.text
