"""The user's own data in CSV and JSON files."""

import json

from .cases import NO_WEIGHTS, Case, split

CSV = "text,label\nthe boat,1\nthe house,0\n"
LINES = '{"text": "the boat", "label": 1}\n{"text": "the house", "label": 0}\n'


def files(name, says, train, validation=None, kind="csv", words=""):
    """Returns a case of a training file and a validation file, which are the same if only one is given."""
    command = ("--train_file", f"train.{kind}", "--validation_file", f"dev.{kind}", *NO_WEIGHTS, "--do_train")
    given = {f"train.{kind}": train, f"dev.{kind}": train if validation is None else validation}
    return Case(f"data: {name}", (*command, *split(words), "--output_dir", "out"), says, given)


def rows(name, says, train, validation=None):
    """Returns a case of JSON files, from lists of objects."""

    def lines(values):
        return "\n".join(json.dumps(value) for value in values) + "\n"

    return files(name, says, lines(train), None if validation is None else lines(validation), "json")


DATA = [
    files("no label column", "train data has no column 'label'", "text,class\na,1\n"),
    files("another text column", "validation data has no text in the column", CSV, CSV.replace("text", "words")),
    files("numbers for texts", "No column beside 'label' has text; the columns are id, label", "id,label\n5,1\n6,0\n"),
    files("a column too many", "train.csv, line 3: 3 columns, and 2 are expected", "text,label\na,1\nb,1,2\n"),
    files("a column twice", "train.csv cannot be loaded: the header has a column twice", "text,label,label\na,1,0\n"),
    files("an empty file", "train.csv cannot be loaded: it has no rows", "", CSV),
    files("a task as well", "--task_name and --train_file are two sources of", CSV, CSV, "csv", "--task_name mrpc"),
    Case(
        "data: a test file without the texts",
        ("--train_file", "a.csv", "--test_file", "t.csv", *NO_WEIGHTS, "--do_predict", "--output_dir", "out"),
        "test data has no text in the column 'text'",
        {"a.csv": CSV, "t.csv": "label\n1\n"},
    ),
    Case(
        "data: a test file alone",
        ("--test_file", "t.csv", *NO_WEIGHTS, "--do_predict", "--output_dir", "out"),
        "A test file alone does not say which labels there are. Give --train_file as well",
        {"t.csv": CSV},
    ),
    # bytes
    files("an open quote at the end", "train.csv, line 5: unexpected end of data", CSV + 'x,"1\ny,0\n', CSV),
    files("UTF-16", ["train.csv cannot be loaded", "UTF-8"], CSV.encode("utf-16"), CSV),
    # JSON
    files("broken JSON", "train.json, line 3: this is no JSON", LINES + '{"text": "a", "lab', LINES, "json"),
    files("JSON of numbers", "train.json cannot be loaded: a row is no object", "1\n2\n3\n", LINES, "json"),
    files("an empty JSON object", "train.json cannot be loaded: it has no rows", "{}\n", LINES, "json"),
    files("JSON of endless depth", "train.json", '{"text": ' + "[" * 999 + "]" * 999 + "}", LINES, "json"),
    rows("texts that are objects", "No column beside 'label' has text", [{"text": {"a": "b"}, "label": 1}]),
    # labels
    files("no label in a row", "train data has no label in row 2", "text,label\na,1\nb,\n", CSV),
    files("a label that training has not", "validation data has the", "text,label\na,x\nb,y\n", "text,label\na,z\n"),
    files("words for scores", "are scores, but the labels of the val", "text,label\na,.5\nb,1\n", "text,label\na,x\n"),
    files("one label only", "2 rows have 1 label, and two or more are needed", "text,label\na,1\nb,1\n"),
    rows("as many labels as rows", "100 rows have 100 labels", [{"text": "a", "label": f"b{i}"} for i in range(100)]),
    rows("labels that are objects", "labels are neither text, nor", [{"text": "a", "label": {"a": 1}}] * 2),
    rows("labels of two kinds", "train.json cannot be", [{"text": "a", "label": "x"}, {"text": "b", "label": 1}]),
]
