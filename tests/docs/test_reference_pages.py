"""The reference pages have every public name, argument, command and check."""

import dataclasses
import importlib.util
import inspect
import re
import sys

import pytest

from mps_trainer import TrainingArguments
from mps_trainer.cli import COMMANDS, _parser
from mps_trainer.selftest import CHECKS, CheckResult
from mps_trainer.tools.selftest.numbers import TOLERANCES
from mps_trainer.tools.selftest.results import table as table_of_checks

from .pages import ROOT, all_blocks

API, COMMANDS_PAGE, SELFTEST = (
    (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("api.rst", "commands.md", "selftest.md")
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


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    """Returns the pages as docs/reference.py writes them."""
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module.pages()


@pytest.mark.parametrize("name", ["api.md", "arguments.md", "commands.md", "index.md"])
def test_page_is_the_one_that_the_script_writes(name, generated):
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == generated[name], "run `python docs/reference.py`"


def test_api_for_github_has_each_object_with_its_types(generated):
    page = generated["api.md"]
    for name in listed():
        assert f"\n### `{name.rpartition('.')[2]}`\n" in page, name
    assert "\n#### `Trainer.train`\n" in page
    assert "\n    resume_from_checkpoint: str | bool | None = None,\n" in page
    assert not re.search(r"^\.\. |:\w+:`|```\{", page, re.MULTILINE)  # what only Sphinx reads


def test_front_page_links_to_every_page(generated):
    linked = set(re.findall(r"\]\(([\w-]+)\.md\)", generated["index.md"].split("## All pages")[1]))
    assert linked == {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"}


def test_tables_keep_bars_of_their_texts(generated):
    (row,) = (line for line in generated["arguments.md"].splitlines() if line.startswith("| `data_seed`"))
    assert row.startswith("| `data_seed`<br>int \\| None: None | Seed")
    rows = [line for line in (generated["arguments.md"] + generated["commands.md"]).splitlines() if line[:3] == "| `"]
    assert all(len(re.findall(r"(?<!\\)\|", line)) in (3, 4) for line in rows)


def test_fields_are_in_one_table_each_with_defaults_and_help_or_their_successors(extension):
    table = extension("arguments_page")
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
    page = {command.name: command for command in extension("commands_page").commands()}
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
