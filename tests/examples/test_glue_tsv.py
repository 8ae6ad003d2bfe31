"""The reader of GLUE's own TSV files."""

import pytest
from glue_errors import UserError
from glue_tasks import TASKS
from glue_tsv import load_folder, read_rows, read_split

from .conftest import EMBEDDED, REAL

MRPC = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"


@pytest.fixture
def file(tmp_path):
    def write(content):
        path = tmp_path / "train.tsv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.mark.parametrize(
    ("content", "first", "second"),
    [
        pytest.param('1\t0\t0\tHe said " yes\t"Never" , "never\n', 'He said " yes', '"Never" , "never', id="quotes"),
        pytest.param("1\t0\t0\ta\u2028b\x85c\x0bd\te\n", "a\u2028b\x85c\x0bd", "e", id="other line ends"),
        pytest.param("1\t0\t0\ta\tb", "a", "b", id="no line feed at the end"),
        pytest.param("1\t0\t0\ta\tb\n\n", "a", "b", id="several at the end"),
        pytest.param("1\t0\t0\ta\tb\r\n", "a", "b", id="carriage return"),
    ],
)
def test_cells_are_read_as_written(file, content, first, second):
    rows = read_split(file(MRPC + content), TASKS["mrpc"], "train")
    assert [rows[0]] == [{"sentence1": first, "sentence2": second, "label": 1, "idx": 0}]
    assert len(rows) == 1


@pytest.mark.parametrize(
    ("task", "content", "place"),
    [
        ("mrpc", MRPC + "1\t0\t0\ta\tb\n1\t0\t0\ta\n", r"train\.tsv, line 3: 4 columns"),
        ("mrpc", MRPC + "1\t0\t0\ta\tb\n\n1\t0\t0\ta\tb\n", "line 3: 1 columns"),
        ("mrpc", MRPC + "2\t0\t0\ta\tb\n", "line 2: the Quality is '2'"),
        ("mrpc", MRPC + "\t0\t0\ta\tb\n", "line 2: the Quality is ''"),
        ("mrpc", "Quality\t#1 String\n1\ta\n", "no column '#2 String'"),
        ("mrpc", MRPC, "empty"),
        ("mrpc", "", "empty"),
        ("mrpc", b"\xff\xfe\x00", "line 1: this is not UTF-8"),
        ("stsb", "sentence1\tsentence2\tscore\na\tb\thigh\n", "line 2: the score is 'high'"),
        ("stsb", "sentence1\tsentence2\tscore\na\tb\tnan\n", "line 2: the score is 'nan'"),
        ("rte", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tmaybe\n", "line 2: the label is 'maybe'"),
        ("cola", "gj04\t1\t\n", "line 1: 3 columns"),
    ],
)
def test_malformed_file_is_refused_with_its_line(file, task, content, place):
    with pytest.raises(UserError, match=place):
        read_split(file(content), TASKS[task], "train")


def test_header_is_first_line_unless_given(file):
    path = file("a\tb\nc\td\n")
    assert read_rows(path, None) == (["a", "b"], [(2, ["c", "d"])])
    assert read_rows(path, ("x", "y")) == (["x", "y"], [(1, ["a", "b"]), (2, ["c", "d"])])


@pytest.mark.parametrize("name", TASKS)
def test_embedded_sample_of_every_task_is_read(name):
    task = TASKS[name]
    splits = load_folder(EMBEDDED / "data" / task.folder, task)
    assert set(splits) == {split for split, _ in task.splits}
    for split, rows in splits.items():
        assert rows.column_names == [*task.text, "label", "idx"]
        if split.startswith("test"):
            assert set(rows.columns["label"]) == {-1}
        elif task.labels:
            assert set(rows.columns["label"]) == set(range(len(task.labels)))
        else:
            assert 0 <= min(rows.columns["label"]) < max(rows.columns["label"]) <= 5


def test_splits_without_file_are_left_out(tmp_path, file):
    file(MRPC + "0\t0\t0\ta\tb\n")
    assert list(load_folder(tmp_path, TASKS["mrpc"])) == ["train"]


def test_folder_without_files_is_refused_with_their_names(tmp_path):
    with pytest.raises(UserError, match=r"train\.tsv, dev\.tsv, test\.tsv"):
        load_folder(tmp_path, TASKS["mrpc"])
    with pytest.raises(UserError, match="is not a folder"):
        load_folder(tmp_path / "missing", TASKS["mrpc"])


@pytest.mark.skipif(not (REAL / "glue").is_dir(), reason=f"no real GLUE data in {REAL}")
@pytest.mark.parametrize(
    ("name", "sizes"),
    [("mrpc", [3668, 408, 1725]), ("cola", [8551, 1043, 1063]), ("sst2", [8000, 872, 1821])],
)
def test_real_data_is_read_whole(name, sizes):
    splits = load_folder(REAL / "glue" / TASKS[name].folder, TASKS[name])
    assert [len(splits[split]) for split in ("train", "validation", "test")] == sizes
