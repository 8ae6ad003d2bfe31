"""The page as a file: whole by itself, and nothing in it obeys what it was made of."""

import math
import re

import pytest

from mps_trainer.reports.pages import comparison_page, run_page, tell_apart
from mps_trainer.reports.record import RunRecord

from .conftest import Elements, rows_of

EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>\" onload='x"


def test_nothing_is_fetched(record):
    made = Elements(run_page(record))
    assert not [tag for tag, attributes in made.found if {"src", "href", "srcset", "data"} & attributes.keys()]
    assert "link" not in dict(made.found)
    (policy,) = [a["content"] for tag, a in made.found if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy


def evil(value):
    """`value` with markup for each text in it."""
    if isinstance(value, dict):
        return {key if key in KEPT else f"{key}": evil(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [evil(entry) for entry in value]
    return EVIL if isinstance(value, str) and value not in KEPT else value


KEPT = {"finished", "begin", "evaluation", "checkpoint", "stop", "resume", "end", "mps"}


@pytest.mark.parametrize(
    "make", [run_page, lambda record: comparison_page([record, record])], ids=["page", "comparison"]
)
def test_markup_in_what_a_file_says_is_inert(data, make):
    changed = evil(data)
    changed["name"] = EVIL
    changed["history"][2][f"eval_{EVIL}"] = 0.5
    changed["changed"] = {EVIL: [EVIL, EVIL]}
    clean, made = Elements(make(RunRecord.from_dict(data))), Elements(make(RunRecord.from_dict(changed)))
    counts = [[tag for tag, _ in elements.found].count("script") for elements in (clean, made)]
    assert counts[0] == counts[1]
    assert not [tag for tag, _ in made.found if tag == "img"]
    assert not [name for _, attributes in made.found for name in attributes if name.startswith("on")]
    assert EVIL in made.text


def charts_of(text):
    found = re.findall(r'<svg [^>]*aria-label="([^"]*)".*?</svg>', text, re.DOTALL)
    return dict(zip(found, re.findall(r"<svg .*?</svg>", text, re.DOTALL), strict=True))


def axes_of(svg):
    return re.findall(r'class="title"[^>]*>([^<]*)<', svg)


def test_charts_have_no_style_script_or_name_of_their_own(record):
    found = charts_of(run_page(record))
    assert {"Loss", "Metrics", "Throughput", "Memory", "Time line", "Tokens of an epoch"} <= found.keys()
    for svg in found.values():
        made = Elements(svg)
        assert {tag for tag, _ in made.found} <= {"svg", "g", "path", "rect", "circle", "text", "title"}
        assert not [attributes for _, attributes in made.found if "id" in attributes]
        assert "pygal" not in made.text


def test_no_section_is_without_content_and_a_run_without_anything_has_a_page(record):
    headings = re.findall(r"<h2>(.*?)</h2>", run_page(record))
    assert "Operators that fell back to the CPU" in headings
    assert "Evaluation" not in headings
    record.fallback = {"text": "", "operators": [], "complete": True}
    record.events, record.changed = [], {}
    made = run_page(record)
    assert {"Operators that fell back to the CPU", "Arguments that differ from their defaults"} & {
        *re.findall(r"<h2>(.*?)</h2>", made)
    } == set()
    assert '<section class="card">\n</section>' not in made
    made = Elements(run_page(RunRecord("nothing", {})))
    assert "<h1>nothing</h1>" in run_page(RunRecord("nothing", {}))
    assert not [tag for tag, _ in made.found if tag in ("h2", "section", "table")]


def test_a_metric_too_large_to_be_drawn_is_a_number(record):
    record.history = [{"step": step, "eval_perplexity": math.exp(350 + step)} for step in (1, 9)]
    page = run_page(record)
    assert f"{math.exp(359)}"[:40] in page
    assert "<h3>perplexity" not in page


def test_runs_are_compared_by_metrics_arguments_and_surroundings(data):
    first = RunRecord.from_dict(data)
    changes = {"arguments": {**data["arguments"], "seed": 8, "output_dir": "b"}, "history": data["history"][:3]}
    changes["environment"] = {**data["environment"], "torch_version": "2.14"}
    other = RunRecord.from_dict({**data, "name": "other", **changes})
    bare = RunRecord("bare", {"kind": "unknown", "step": 4}, history=first.history)
    page = comparison_page([first, other, bare])
    assert rows_of(page) == [
        ["run", "accuracy", "evaluation loss", "training loss", "steps", "time", "samples/s"],
        ["glue", "0.75", "0.6", "0.4", "4", "8.0 s", "8.5"],
        ["other", "0.5", "0.8", "0.7", "4", "8.0 s", "8"],
        ["bare", "0.75", "0.6", "0.4", "4", "–", "8.5"],
        ["argument", "glue", "other", "bare"],
        ["seed", "7", "8", "?"],
        ["", "glue", "other", "bare"],
        ["packages", "mps_trainer 0.1, torch 2.13", "mps_trainer 0.1, torch 2.14", "?"],
    ]
    assert "Not known of bare." in page
    assert axes_of(charts_of(page)["Metrics, accuracy"]) == ["step", "accuracy"]
    loss = charts_of(page)["Loss, training"]
    assert axes_of(loss) == ["step", "loss"]
    assert "break" not in loss  # the best step is that of one run
    assert set(re.findall(r"curve (color-\d)", loss)) == {"color-0", "color-1", "color-2"}


def test_a_run_without_a_curve_leaves_its_colour_unused(data):
    first = RunRecord("first", {"kind": "unknown", "step": 4}, history=[{"eval_f1": 0.5, "step": 1}])
    loss = charts_of(comparison_page([first, RunRecord.from_dict(data)]))["Loss, training"]
    assert "step 1: 0.9" in loss
    assert set(re.findall(r"curve (color-\d)", loss)) == {"color-1"}


def test_runs_of_one_name_are_told_apart_by_their_folders():
    records = [RunRecord("out", {}) for _ in range(3)] + [RunRecord("mine", {})]
    tell_apart(records, ["a/b/out", "a/c/out", "d/c/out", "x"])
    assert [record.name for record in records] == ["a/b/out", "a/c/out", "d/c/out", "mine"]
