"""Modules import no circle, the Trainer is one class, and no part imports it."""

import ast
import graphlib

from mps_trainer import Seq2SeqTrainer, Trainer
from tests import ROOT

# The modules of the Trainer's two classes, and what looks at a Trainer from outside.
TRAINER = {"mps_trainer.trainer", "mps_trainer.trainer_seq2seq"}
OUTSIDE = ("tools", "check", "fit", "simulator", "selftest", "cli", "replace_transformers")

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


def test_the_trainer_is_one_class_without_mixins():
    assert Trainer.__bases__ == (object,)
    assert Seq2SeqTrainer.__bases__ == (Trainer,)


def test_parts_do_not_import_the_trainer():
    parts = {name for name in MODULES if name not in TRAINER and room_of(name) not in ("", *OUTSIDE)}
    assert {name for name in parts if IMPORTS[name] & TRAINER} == set()
