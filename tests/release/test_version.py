"""The version stands in one file, and what repeats it agrees."""

import re
from pathlib import Path

import yaml

from mps_trainer.version import __version__

ROOT = Path(__file__).parents[2]


def test_the_citation_and_the_first_section_of_the_changelog_are_of_it():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(citation["version"]) == __version__
    assert {"cff-version", "message", "title", "authors"} <= set(citation)  # without which it is none
    first = re.search(r"^## (\S+) \((.+)\)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert first is not None
    assert first[1] == __version__
    released = str(citation.get("date-released", "unreleased"))
    assert first[2] == released  # a date in both once there is one
