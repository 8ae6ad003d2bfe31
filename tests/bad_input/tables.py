"""GLUE's TSV files."""

from __future__ import annotations

from .cases import HEADER, NO_WEIGHTS, ROWS, TASK, TSV, Case


def tsv(name, content, says, task="mrpc", file="train.tsv"):
    command = ("--task_name", task, *TSV[2:], "--output_dir", "out")
    return Case(f"tables: {name}", command, says, {f"data/{file}": content})


def row(label="1", first="a", second="b"):
    return f"{label}\t0\t0\t{first}\t{second}\n"


EVALUATE = (*TASK, "--data_dir", "data", *NO_WEIGHTS, "--do_eval", "--output_dir", "out")
STSB = "sentence1\tsentence2\tscore\n"

SHAPE = [
    tsv("only line feeds", "\n\n\n", "train.tsv is empty"),
    tsv("a column too many", HEADER + ROWS + "1\t0\t0\ta\tb\tc\n", "train.tsv, line 6: 6 columns"),
    tsv("a column twice", "Quality\t#1 ID\t#1 String\t#1 String\t#2 String\n" + ROWS, "'#1 String' twice"),
    tsv("commas for tabs", (HEADER + ROWS).replace("\t", ","), "no column '#1 String'"),
    tsv("lines that end in carriage returns", (HEADER + ROWS).replace("\n", "\r"), "train.tsv"),
    tsv("a header of ten thousand columns", "x\t" * 10**4 + "\n" + ROWS, "columns, and 10001 are expected"),
    Case(
        "tables: no file of the task",
        (*TSV, "--output_dir", "out"),
        "none of the files of this task: train.tsv",
        {"data/train.csv": "text,label\n"},
    ),
    Case(
        "tables: a folder for a file",
        (*TSV, "--output_dir", "out"),
        "none of the files of this task",
        make=lambda folder: (folder / "data/train.tsv").mkdir(parents=True),
    ),
    Case("tables: only training data", EVALUATE, "--do_eval needs validation data", {"data/train.tsv": HEADER + ROWS}),
    Case(
        "tables: a bad file beside the one that is wanted",
        EVALUATE,
        "train.tsv, line 2: 2 columns",
        {"data/dev.tsv": HEADER + ROWS, "data/train.tsv": HEADER + "1\ta\n"},
    ),
    Case("tables: a file for the folder", (*TSV, "--output_dir", "out"), "--data_dir data is not a", {"data": ""}),
]

BYTES = [
    tsv("UTF-16", (HEADER + ROWS).encode("utf-16"), ["train.tsv, line 1", "UTF-8"]),
    tsv("Latin-1", (HEADER + row(first="é")).encode("latin-1"), ["train.tsv, line 2", "UTF-8"]),
    tsv("a NUL byte", HEADER + row() + row(second="b\x00"), "train.tsv, line 3: a NUL byte"),
    tsv("a line of 10 MB", HEADER + row() + row(first="red boat " * 1200000), "train.tsv, line 3: a text of 10800008"),
]

LABELS = [
    tsv("a label out of range", HEADER + row("7"), "train.tsv, line 2: the Quality is '7', and 0 to 1 or"),
    tsv("a label of five thousand digits", HEADER + row("1" * 5000), "train.tsv, line 2: the Quality is '111"),
    tsv("a superscript for a label", HEADER + row("²"), "train.tsv, line 2: the Quality is '²'"),
    tsv("an escape sequence for a label", HEADER + row("\x1b[2J"), "the Quality is '\\x1b[2J'"),
    tsv("a score out of all measure", STSB + "a\tb\t1e300\n", "line 2: the score is '1e300'", task="stsb"),
]

TABLES = [*SHAPE, *BYTES, *LABELS]
