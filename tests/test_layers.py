"""Modules import no circle, the Trainer is one class, and no part imports it."""

import ast
import graphlib

import pytest

from mps_trainer import Seq2SeqTrainer, Trainer
from tests import ROOT, run_python

# The modules of the Trainer's two classes.
TRAINER = {"mps_trainer.trainer", "mps_trainer.trainer_seq2seq"}
# Those with the public names of the tools, and all that look at a Trainer from outside.
DOORS = ("check", "fit", "simulator", "selftest")
OUTSIDE = ("tools", *DOORS, "cli", "export", "replace_transformers")

MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "mps_trainer").rglob("*.py")
}


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


def test_no_module_imports_itself_by_way_of_others():
    graphlib.TopologicalSorter(IMPORTS).prepare()  # raises CycleError


def room_of(name: str) -> str:
    """Returns the folder or module right in the package that a module is in."""
    return name.partition(".")[2].partition(".")[0]


def test_the_core_does_not_import_what_looks_at_it_from_outside():
    core = {name for name in MODULES if room_of(name) not in ("", "__main__", *OUTSIDE)}
    assert {(name, each) for name in core for each in IMPORTS[name] if room_of(each) in OUTSIDE} == set()
    # by import_module or in sys.modules
    assert {name for name in core if "mps_trainer.tools" in MODULES[name].read_text(encoding="utf-8")} == set()


@pytest.mark.parametrize("door", DOORS)
def test_public_modules_import_their_tool_alone(door):
    assert {".".join(each.split(".")[:3]) for each in IMPORTS[f"mps_trainer.{door}"]} == {f"mps_trainer.tools.{door}"}


@pytest.mark.integration
def test_no_tool_is_loaded_with_the_trainer():
    tools = "[name for name in sys.modules if name.startswith('mps_trainer.tools')]"
    ran = run_python("-c", f"import sys; from mps_trainer import Trainer; print({tools})")
    assert (ran.returncode, ran.stdout) == (0, "[]\n"), ran.stderr


def test_the_trainer_is_one_class_without_mixins():
    assert Trainer.__bases__ == (object,)
    assert Seq2SeqTrainer.__bases__ == (Trainer,)


def test_parts_do_not_import_the_trainer():
    parts = {name for name in MODULES if name not in TRAINER and room_of(name) not in ("", *OUTSIDE)}
    assert {name for name in parts if IMPORTS[name] & TRAINER} == set()
