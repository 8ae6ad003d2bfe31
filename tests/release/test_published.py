"""The README on PyPI, where no repository is around it, and the version, which stands in one file."""

import importlib.util
import re

import pytest
import yaml

from mps_trainer.version import __version__
from tests import ROOT

WHERE = "https://host.example/owner/name"


@pytest.fixture(scope="module")
def setup_py():
    spec = importlib.util.spec_from_file_location("setup_of_the_package", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_and_pictures_become_addresses(setup_py):
    text = "[a](docs/a.md), ![b](docs/b.png), [c](https://c.example), [d](#d), [e](LICENSE)"
    text += ' <img src="docs/f.png" width="9">'
    assert setup_py.with_absolute_links(text, WHERE, "v1") == (
        f"[a]({WHERE}/blob/v1/docs/a.md), ![b]({WHERE}/raw/v1/docs/b.png), [c](https://c.example), [d](#d), "
        f'[e]({WHERE}/blob/v1/LICENSE) <img src="{WHERE}/raw/v1/docs/f.png" width="9">'
    )


def test_no_link_of_the_readme_stays_a_path(setup_py):
    published = setup_py.published_at(WHERE)
    targets = re.findall(r"\]\(([^)]+)\)|<img src=\"([^\"]+)\"", published["long_description"])
    targets = [link or picture for link, picture in targets]
    assert len(targets) > 10
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    assert all(address.startswith(WHERE) for address in published["project_urls"].values())


def test_published_pages_are_named_once_they_have_an_address(setup_py):
    address = "https://owner.example/pages/"
    documentation = [setup_py.published_at(WHERE, at)["project_urls"]["Documentation"] for at in ("", address)]
    assert documentation == [f"{WHERE}/blob/v{__version__}/docs/index.md", address]


def test_the_citation_and_the_first_section_of_the_changelog_are_of_it():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(citation["version"]) == __version__
    assert {"cff-version", "message", "title", "authors"} <= set(citation)  # without which it is none
    first = re.search(r"^## (\S+) \((.+)\)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert first is not None
    assert first[1] == __version__
    released = str(citation.get("date-released", "unreleased"))
    assert first[2] == released  # a date in both once there is one
