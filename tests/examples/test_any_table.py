"""Whatever is in a TSV file, it is read as it is or refused with its name; what is valid comes back unchanged."""

import pytest
from glue_errors import UserError
from glue_tasks import TASKS
from glue_tsv import read_rows, read_split
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mps_trainer.utils.text import as_line

HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
STSB = "sentence1\tsentence2\tscore\n"

thorough = settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
# in a cell anything goes but what ends it; half a character cannot be written
cells = st.text(st.characters(exclude_characters="\t\n\0", exclude_categories=["Cs"]), max_size=20)
odd = cells | st.sampled_from(
    ["", "0", "1", "2", "-1", "1.5", "nan", "²", "\x00", "\t", "\r", '"', "\ufeff", "9" * 5000]
)
tables = st.lists(st.lists(odd, max_size=7).map("\t".join), max_size=6).map("\n".join)
headers = st.sampled_from(["", HEADER, STSB, "\ufeff" + HEADER, HEADER.replace("\n", "\r\n")])
files = st.binary(max_size=200) | st.builds(lambda header, rows: (header + rows).encode(), headers, tables)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "train.tsv"


@pytest.mark.parametrize("task", ["mrpc", "stsb", "cola"])
@pytest.mark.parametrize("split", ["train", "test"])
@thorough
@given(content=files)
@example(content=b"\xff\xfe\x00")
@example(content=(HEADER + "1" * 5000 + "\t0\t0\ta\tb\n").encode())
@example(content=(STSB + "a\tb\t1e39\n").encode())
def test_any_bytes_are_rows_or_one_clear_error(path, task, split, content):
    path.write_bytes(content)
    rows, refusal = read(path, TASKS[task], split)
    if rows is None:
        assert str(path) in refusal
        assert refusal.endswith(".")
        assert as_line(refusal).isprintable()
        return
    assert len(rows) > 0
    assert rows.column_names == [*TASKS[task].text, "label", "idx"]
    for row in rows:
        assert all(isinstance(row[column], str) for column in TASKS[task].text)
        assert row["label"] == -1 if split == "test" else abs(row["label"]) < float("inf")


def read(path, task, split):
    """The rows, or the message of the refusal; nothing else may be raised."""
    try:
        return read_split(path, task, split), ""
    except UserError as error:
        return None, str(error)


@thorough
@given(rows=st.lists(st.tuples(st.sampled_from([0, 1]), cells, cells), min_size=1, max_size=8), mark=st.booleans())
def test_valid_rows_come_back_as_they_were(path, rows, mark):
    lines = [f"{label}\t7\t8\t{first}\t{second}." for label, first, second in rows]
    content = "\n".join([HEADER.rstrip(), *lines])
    path.write_text(content, encoding="utf-8-sig" if mark else "utf-8", newline="")
    back = read_split(path, TASKS["mrpc"], "train")
    assert [(row["label"], row["sentence1"], row["sentence2"]) for row in back] == [
        (label, first, f"{second}.") for label, first, second in rows
    ]
    header, numbered = read_rows(path, None)
    assert header == HEADER.rstrip().split("\t")
    assert [number for number, _ in numbered] == list(range(2, len(rows) + 2))
