"""The page as a browser shows it: the charts are there, and the console has nothing to say."""

from __future__ import annotations

import re

import pytest

from mps_trainer.reports.comparison import comparison
from mps_trainer.reports.page import page

from .browser import NAMES, find, look

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(find() is None, reason=f"no browser: none of {', '.join(NAMES)} is installed"),
]


@pytest.fixture
def seen(tmp_path):
    def open_page(text, **settings):
        file = tmp_path / "page.html"
        file.write_text(text, encoding="utf-8")
        return look(file, tmp_path, **settings)

    return open_page


def lines_in(elements, key):
    """The curves that were drawn at the place of a figure."""
    place = elements.index(f'id="{key}"')
    return re.findall(r'<path class="js-line"', elements[place : elements.find("</section>", place)])


def test_every_chart_is_drawn_and_nothing_is_wrong(seen, record):
    drawn = seen(page(record))
    assert drawn.console == []
    charts = re.findall(r'<div class="chart[^"]*" id="([\w-]+)"', page(record))
    assert len(charts) == 9
    assert drawn.elements.count('class="main-svg"') >= len(charts)
    assert len(lines_in(drawn.elements, "chart-loss")) == 2
    assert len(lines_in(drawn.elements, "chart-memory")) == 1
    assert "#1f6feb" in drawn.elements.lower() or "rgb(31, 111, 235)" in drawn.elements


def test_a_comparison_on_a_phone_in_dark_mode_is_drawn(seen, record):
    drawn = seen(comparison([record, record]), width=390, height=800, dark=True)
    assert drawn.console == []
    assert len(lines_in(drawn.elements, "chart-0")) == 2
    assert "rgb(88, 166, 255)" in drawn.elements


def test_errors_and_requests_of_a_page_are_seen(seen, record):
    broken = page(record).replace("Plotly.react(", "Plotly.reacts(")
    asking = broken.replace("<main>", '<main><img src="https://example.org/x.png">')
    said = seen(asking).console
    assert any("Plotly.reacts is not a function" in line for line in said)
    assert any("Content Security Policy" in line for line in said)
