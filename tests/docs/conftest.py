"""The model and the dataset that the pages use, and the modules that make the pages."""

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from tests.tiny import tiny

from .pages import ROOT


@pytest.fixture
def extension(monkeypatch) -> Callable[[str], ModuleType]:
    """`extension(name)` imports a module of docs/_ext."""
    monkeypatch.syspath_prepend(ROOT / "docs" / "_ext")
    return importlib.import_module


@pytest.fixture
def bert():
    return tiny("BertForSequenceClassification")


@pytest.fixture
def sentences() -> list[dict[str, Any]]:
    return [{"input_ids": [1, 2, 3 + i % 7, 4], "labels": i % 2} for i in range(8)]
