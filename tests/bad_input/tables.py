"""GLUE's TSV files."""

from .cases import HEADER, NO_WEIGHTS, ROWS, TASK, TSV, Case


def tsv(name, content, says, task="mrpc", file="train.tsv"):
    command = ("--task_name", task, *TSV[2:], "--output_dir", "out")
    return Case(f"tables: {name}", command, says, {f"data/{file}": content})


def row(label="1", first="a", second="b"):
    return f"{label}\t0\t0\t{first}\t{second}\n"


def folder(name, says, files=(), command=TSV, make=None):
    return Case(f"tables: {name}", (*command, "--output_dir", "out"), says, dict(files), make)


EVALUATE = (*TASK, "--data_dir", "data", *NO_WEIGHTS, "--do_eval")
STSB = "sentence1\tsentence2\tscore\n"

BAD_BESIDE = {"data/dev.tsv": HEADER + ROWS, "data/train.tsv": HEADER + "1\ta\n"}

TABLES = [
    tsv("commas for tabs", (HEADER + ROWS).replace("\t", ","), ["train.tsv cannot be loaded", "#1 String"]),
    tsv("a header of ten thousand columns", "x\t" * 10**4 + "\n" + ROWS, "columns, and 10001 are expected"),
    folder("no file of the task", "none of the files of this task: train.tsv", {"data/train.csv": "text,label\n"}),
    folder("a folder", "none of the files of", make=lambda folder: (folder / "data/train.tsv").mkdir(parents=True)),
    folder("only training data", "--do_eval needs validation data", {"data/train.tsv": HEADER + ROWS}, EVALUATE),
    folder("a bad file beside the one that is wanted", "train.tsv, line 2: 2 columns", BAD_BESIDE, EVALUATE),
    folder("a file for the folder", "--data_dir data has none of the files of this task", {"data": ""}),
    # labels
    tsv("a label out of range", HEADER + row("7"), ["train.tsv", "class label 7. Its Quality has to be"]),
    tsv("a label of five thousand digits", HEADER + row("1" * 5000), ["train.tsv", "class label 111"]),
    tsv("a superscript for a label", HEADER + row("²"), ["train.tsv", "class label ²"]),
    tsv("an escape sequence for a label", HEADER + row("\x1b[2J"), "class label \\x1b[2J"),
    tsv("a word for a score", STSB + "a\tb\thigh\n", ["train.tsv", "'high'", "has to be a number"], task="stsb"),
]
