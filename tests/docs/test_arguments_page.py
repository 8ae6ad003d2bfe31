"""The table of arguments is made from the fields, and misses none."""

from __future__ import annotations

import dataclasses
import sys

import pytest

from mps_trainer import TrainingArguments

from .pages import ROOT


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "docs" / "_ext"), *sys.path])
    import arguments_table

    return arguments_table


def test_fields_are_in_one_table_each(table):
    current = [row.name for rows in table.groups().values() for row in rows]
    names = current + [row.name for row in table.deprecated()]
    assert sorted(names) == sorted(field.name for field in dataclasses.fields(TrainingArguments))


def test_rows_have_defaults_and_help_of_fields(table):
    rows = {row.name: row for group in table.groups().values() for row in group}
    for field in dataclasses.fields(TrainingArguments):
        if field.name in rows:
            missing = field.default is dataclasses.MISSING
            assert rows[field.name].default == repr(field.default_factory() if missing else field.default)
            assert rows[field.name].help == field.metadata["help"]
            assert rows[field.name].help


def test_deprecated_fields_name_their_successors(table):
    instead = {row.name: row.help for row in table.deprecated()}
    assert instead["no_cuda"] == "use use_cpu."
    assert "Deprecated" not in " ".join(instead.values())
