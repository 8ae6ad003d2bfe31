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


def test_each_field_is_in_exactly_one_table(table):
    current = [row.name for rows in table.groups().values() for row in rows]
    names = current + [row.name for row in table.deprecated()]
    assert sorted(names) == sorted(field.name for field in dataclasses.fields(TrainingArguments))


def test_a_row_says_what_the_field_says(table):
    rows = {row.name: row for group in table.groups().values() for row in group}
    for field in dataclasses.fields(TrainingArguments):
        if field.name in rows:
            missing = field.default is dataclasses.MISSING
            assert rows[field.name].default == repr(field.default_factory() if missing else field.default)
            assert rows[field.name].help == field.metadata["help"]
            assert rows[field.name].help


def test_a_deprecated_field_names_what_replaces_it(table):
    instead = {row.name: row.help for row in table.deprecated()}
    assert instead["no_cuda"] == "use use_cpu."
    assert "Deprecated" not in " ".join(instead.values())


def test_defaults_are_those_of_transformers():
    from transformers import TrainingArguments as Theirs

    theirs = {field.name: field.default for field in dataclasses.fields(Theirs)}
    ours = {field.name: field.default for field in dataclasses.fields(TrainingArguments)}
    # False and None are one thing for a switch; output_dir=None is the folder that is the default here.
    different = {name for name in ours.keys() & theirs.keys() if (ours[name] or None) != (theirs[name] or None)}
    assert different == {"output_dir", "report_to"}
