"""Importing the package changes no other package."""

import json

import pytest

from tests import run_python

PACKAGES = ("builtins", "torch", "transformers", "accelerate")
SNAPSHOT = """
import builtins, importlib, json, sys
def snapshot():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in PACKAGES and module is not None:
            for attribute, value in list(vars(module).items()):
                if type(module) is type(sys):  # transformers' own kind of module loads its attributes on demand
                    found[name, attribute] = id(value)
                if isinstance(value, type) and value.__module__ == name:
                    found.update({(name, attribute, each): id(inner) for each, inner in list(vars(value).items())})
    return found, [id(each) for each in sys.meta_path], [id(each) for each in sys.path_hooks]
"""


def printed(code: str) -> object:
    """Returns what `code` prints as JSON, from a process of its own, because imports stay."""
    ran = run_python("-c", code, CUDA_VISIBLE_DEVICES="")
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.strip().splitlines()[-1])


@pytest.mark.integration
def test_importing_the_trainer_leaves_other_packages_as_they_are():
    loaded = printed("import json, sys\nfrom mps_trainer import Trainer\nprint(json.dumps(list(sys.modules)))")
    others = [name for name in loaded if name.split(".")[0] in PACKAGES]
    code = f"""PACKAGES = {PACKAGES}{SNAPSHOT}
for name in {others!r}:
    try:
        importlib.import_module(name)
    except ImportError:  # made by another module while it is loaded
        pass
before = snapshot()
from mps_trainer import Trainer
after = snapshot()
changed = [key for key in before[0].keys() | after[0].keys() if before[0].get(key) != after[0].get(key)]
print(json.dumps([sorted(changed), before[1:] == after[1:]]))
"""
    assert printed(code) == [[], True]
