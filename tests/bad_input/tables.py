"""GLUE's TSV files."""

from __future__ import annotations

import gzip

from .cases import HEADER, NO_WEIGHTS, ROWS, TASK, TSV, TSV_FILES, Case


def tsv(name, content, says, task="mrpc", file="train.tsv"):
    command = ("--task_name", task, *TSV[2:], "--output_dir", "out")
    return Case(f"tables: {name}", command, says, {f"data/{file}": content})


def row(label="1", first="a", second="b"):
    return f"{label}\t0\t0\t{first}\t{second}\n"


EVALUATE = (*TASK, "--data_dir", "data", *NO_WEIGHTS, "--do_eval", "--output_dir", "out")
STSB = "sentence1\tsentence2\tscore\n"

SHAPE = [
    tsv("empty", "", "train.tsv is empty: it has not even a header"),
    tsv("only line feeds", "\n\n\n", "train.tsv is empty"),
    tsv("only a header", HEADER, "train.tsv is empty: it has no row"),
    tsv("a column too few", HEADER + "1\t0\t0\ta\n", "train.tsv, line 2: 4 columns, and 5 are expected"),
    tsv("a column too many", HEADER + ROWS + "1\t0\t0\ta\tb\tc\n", "train.tsv, line 6: 6 columns"),
    tsv("an empty line between", HEADER + row() + "\n" + row(), "train.tsv, line 3: 1 columns"),
    tsv("another header", "label\tone\ttwo\n1\ta\tb\n", "no column '#1 String'"),
    tsv("a column twice", "Quality\t#1 ID\t#1 String\t#1 String\t#2 String\n" + ROWS, "'#1 String' twice"),
    tsv("commas for tabs", (HEADER + ROWS).replace("\t", ","), "no column '#1 String'"),
    tsv("lines that end in carriage returns", (HEADER + ROWS).replace("\n", "\r"), "train.tsv"),
    tsv("a header of ten thousand columns", "x\t" * 10**4 + "\n" + ROWS, "columns, and 10001 are expected"),
    tsv("CoLA without its columns", "gj04\t1\tthe boat\n", "train.tsv, line 1: 3 columns", task="cola"),
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
    Case(
        "tables: a link to nowhere",
        (*TSV, "--output_dir", "out"),
        ["data/train.tsv", "does not exist"],
        TSV_FILES,
        make=lambda folder: ((folder / "data/train.tsv").unlink(), (folder / "data/train.tsv").symlink_to("gone")),
    ),
    Case(
        "tables: only training data",
        EVALUATE,
        "--do_eval needs validation data; there is train",
        {"data/train.tsv": HEADER + ROWS},
    ),
    Case(
        "tables: a bad file beside the one that is wanted",
        EVALUATE,
        "train.tsv, line 2: 2 columns",
        {"data/dev.tsv": HEADER + ROWS, "data/train.tsv": HEADER + "1\ta\n"},
    ),
    Case(
        "tables: a file for the folder", (*TSV, "--output_dir", "out"), "--data_dir data is not a folder", {"data": ""}
    ),
]

BYTES = [
    tsv("UTF-16", (HEADER + ROWS).encode("utf-16"), ["train.tsv, line 1", "UTF-8"]),
    tsv("Latin-1", (HEADER + row(first="\xe9")).encode("latin-1"), ["train.tsv, line 2", "UTF-8"]),
    tsv("compressed", gzip.compress(HEADER.encode()), ["train.tsv", "UTF-8"]),
    tsv("a NUL byte", HEADER + row() + row(second="b\0"), "train.tsv, line 3: a NUL byte"),
    tsv("a file of NUL bytes", b"\0" * 4096, "train.tsv, line 1: a NUL byte"),
    tsv(
        "a line of 10 MB",
        HEADER + row() + row(first="red boat " * 1_200_000),
        "train.tsv, line 3: a text of 10800008 characters",
    ),
    tsv("a line of 10 MB and no other", b"x" * 10**7, "train.tsv, line 1: a text of 10000000 characters"),
]

LABELS = [
    tsv("a label out of range", HEADER + row("7"), "train.tsv, line 2: the Quality is '7', and 0 to 1 or"),
    tsv("a label below 0", HEADER + row("-1"), "train.tsv, line 2: the Quality is '-1'"),
    tsv("no label", HEADER + row(""), "train.tsv, line 2: the Quality is ''"),
    tsv("a fraction for a class", HEADER + row("1.0"), "train.tsv, line 2: the Quality is '1.0'"),
    tsv("a class of another task", HEADER + row("entailment"), "train.tsv, line 2: the Quality is 'entailment'"),
    tsv("a label of five thousand digits", HEADER + row("1" * 5000), "train.tsv, line 2: the Quality is '111"),
    tsv("a superscript for a label", HEADER + row("²"), "train.tsv, line 2: the Quality is '²'"),
    tsv("a label in quotes", HEADER + row('"1"'), "train.tsv, line 2: the Quality is '\"1\"'"),
    tsv("an escape sequence for a label", HEADER + row("\x1b[2J"), "the Quality is '\\x1b[2J'"),
    tsv("a score of nan", STSB + "a\tb\tnan\n", "line 2: the score is 'nan', and a number", task="stsb"),
    tsv("a score without end", STSB + "a\tb\t1e999\n", "line 2: the score is '1e999'", task="stsb"),
    tsv("a word for a score", STSB + "a\tb\thigh\n", "line 2: the score is 'high'", task="stsb"),
    tsv("a score out of all measure", STSB + "a\tb\t1e300\n", "line 2: the score is '1e300'", task="stsb"),
]

TABLES = [*SHAPE, *BYTES, *LABELS]
