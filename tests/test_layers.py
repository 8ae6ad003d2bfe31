"""Modules import no circle, the Trainer is one class, and no part imports it."""

import ast
from pathlib import Path

import pytest

from mps_trainer import Seq2SeqTrainer, Trainer
from tests import ROOT

PACKAGE = ROOT / "mps_trainer"
# The modules of the Trainer's two classes, and what looks at a Trainer from outside.
TRAINER = {"mps_trainer.trainer", "mps_trainer.trainer_seq2seq"}
OUTSIDE = ("check", "fit", "simulator", "selftest", "cli", "replace_transformers")


def modules() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found[name] = path
    return found


MODULES = modules()


def imports(name: str) -> set[str]:
    """Returns the package's modules that a module imports, at its top, in functions and for annotations alone."""
    path = MODULES[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom):
            continue
        parents = package[: len(package) - node.level + 1] if node.level else []
        base = ".".join([*parents, *([node.module] if node.module else [])])
        for alias in node.names:
            found.add(f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base)
    return found & set(MODULES)


IMPORTS = {name: imports(name) for name in MODULES}


def reached_from(name: str) -> set[str]:
    seen: set[str] = set()
    to_do = list(IMPORTS[name])
    while to_do:
        if (each := to_do.pop()) not in seen:
            seen.add(each)
            to_do += IMPORTS[each]
    return seen


def test_no_module_imports_itself_by_way_of_others():
    assert {name for name in MODULES if name in reached_from(name)} == set()


@pytest.mark.parametrize("outside", OUTSIDE)
def test_the_core_does_not_import_what_looks_at_it_from_outside(outside):
    core = {name for name in MODULES if name.split(".")[1:2] and name.split(".")[1] not in (*OUTSIDE, "__main__")}
    importers = {
        name for name in core if any(f"{each}.".startswith(f"mps_trainer.{outside}.") for each in IMPORTS[name])
    }
    assert importers == set()


def test_the_trainer_is_one_class_without_mixins():
    assert Trainer.__bases__ == (object,)
    assert Seq2SeqTrainer.__bases__ == (Trainer,)


def parts() -> list[str]:
    skipped = tuple(f"mps_trainer.{each}." for each in OUTSIDE)
    return sorted(name for name in MODULES if name not in TRAINER and not f"{name}.".startswith(skipped))


@pytest.mark.parametrize("name", parts())
def test_a_part_does_not_import_the_trainer(name):
    assert not IMPORTS[name] & TRAINER or name == "mps_trainer"  # which hands on the public names
