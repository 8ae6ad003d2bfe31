"""The page on troubleshooting quotes messages that the package really prints."""

from __future__ import annotations

import pytest

from .pages import all_blocks, one_line
from .provoke import PROVOCATIONS

QUOTED = all_blocks(kind="message")


@pytest.mark.parametrize("block", QUOTED, ids=lambda block: block.label)
def test_a_quoted_message_is_the_one_that_is_printed(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = one_line(PROVOCATIONS[block.label]())
    assert one_line(block.text) == said.replace(f"{tmp_path}/", "")  # the page leaves the working folder out


def test_what_can_be_provoked_is_quoted_and_once():
    assert sorted(block.label for block in QUOTED) == sorted(PROVOCATIONS)
