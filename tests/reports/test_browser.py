"""The page as a browser shows it: the charts are there, and the console has nothing to say."""

import re

import pytest

from mps_trainer.reports.pages import comparison_page, run_page

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


# Writes what the browser made of the first curve into the page: its colour, and the width of the page.
PROBE = """<script>
var line = document.querySelector(".chart .curve .line");
var point = document.querySelector(".chart .curve circle");
point.dispatchEvent(new PointerEvent("pointermove", {
  bubbles: true, clientX: point.getBoundingClientRect().x, clientY: point.getBoundingClientRect().y
}));
document.body.dataset.color = getComputedStyle(line).stroke;
document.body.dataset.length = Math.round(line.getTotalLength());
document.body.dataset.tip = document.querySelector(".tip").textContent;
document.body.dataset.over = document.documentElement.scrollWidth - innerWidth;
</script></body>"""


def probe(drawn, name):
    return re.search(rf'<body[^>]* data-{name}="([^"]*)"', drawn.elements)[1]


def test_every_chart_is_drawn_and_nothing_is_wrong(seen, record):
    text = run_page(record)
    assert text.count("<svg ") == 10
    drawn = seen(text.replace("</body>", PROBE))
    assert drawn.console == []
    assert probe(drawn, "color") == "rgb(31, 111, 235)"
    assert int(probe(drawn, "length")) > 100
    assert probe(drawn, "tip") == "training, step 1: 0.9"


def test_a_comparison_on_a_phone_in_dark_mode_is_drawn(seen, record):
    text = comparison_page([record, record])
    drawn = seen(text.replace("</body>", PROBE), width=500, height=800, dark=True)  # the narrowest window that it has
    assert drawn.console == []
    assert probe(drawn, "color") == "rgb(88, 166, 255)"
    assert int(probe(drawn, "over")) <= 0


def test_a_page_of_a_run_that_goes_on_loads_itself_again(seen, record):
    def noted(text):
        assert text.count("location.reload()") == 1
        return seen(text.replace("location.reload()", 'document.body.dataset.again = "yes"')).elements

    assert 'data-again="yes"' in noted(run_page(record, 1))
    assert 'data-again="yes"' not in noted(run_page(record))


HEAD = """<script>
var size = function (name) { return parseFloat(getComputedStyle(document.querySelector(name)).fontSize); };
var cell = document.querySelector(".matrix td.right").getBoundingClientRect();
var small = document.querySelector(".third svg").getBoundingClientRect();
document.body.dataset.hero = size(".hero dd") / size(".tile dd");
document.body.dataset.square = Math.round(cell.width) + "x" + Math.round(cell.height);
document.body.dataset.chart = Math.round(small.width);
document.body.dataset.over = document.documentElement.scrollWidth - innerWidth;
</script></body>"""


@pytest.mark.parametrize(("width", "classes"), [(1200, 2), (500, 2), (1200, 20), (500, 20)])
def test_main_metric_is_large_the_matrix_square_and_charts_of_few_points_are_small(seen, record, width, classes):
    record.classification["classes"] = ["a_class_with_a_long_name"] * classes
    record.classification["confusion"] = [[1234] * classes for _ in range(classes)]
    drawn = seen(run_page(record).replace("</body>", HEAD), width=width)
    assert drawn.console == []
    assert float(probe(drawn, "hero")) > 2
    assert len(set(probe(drawn, "square").split("x"))) == 1
    assert int(probe(drawn, "chart")) <= 350
    assert int(probe(drawn, "over")) <= 0
