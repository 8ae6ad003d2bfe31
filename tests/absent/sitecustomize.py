"""Hides installed packages from a Python that has this folder on PYTHONPATH, and from its children.

ABSENT="peft optuna" hides these two: an import raises ModuleNotFoundError, `find_spec` returns None, and
`importlib.metadata` does not list them, as where they were never installed.
"""

import importlib.machinery
import importlib.metadata
import os
import re

ABSENT = frozenset(os.environ.get("ABSENT", "").split())
# Distributions whose name differs from their module's.
NAMES = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml"}


def hide() -> None:
    finder, distributions = importlib.machinery.PathFinder, importlib.metadata.MetadataPathFinder
    find_spec, find_distributions = finder.find_spec, distributions.find_distributions
    hidden = {normalized(NAMES.get(name, name)) for name in ABSENT}

    def spec_unless_absent(name, *given, **settings):
        return None if name.partition(".")[0] in ABSENT else find_spec(name, *given, **settings)

    def distributions_but_absent(*given, **settings):
        return (each for each in find_distributions(*given, **settings) if normalized(each.name) not in hidden)

    finder.find_spec = staticmethod(spec_unless_absent)
    distributions.find_distributions = staticmethod(distributions_but_absent)


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name or "").lower()


if ABSENT:
    hide()
