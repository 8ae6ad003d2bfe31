"""Files of arguments, JSON and YAML, as the only argument of run_glue.py."""

from __future__ import annotations

import gzip
import json

from .cases import Case

RIGHT = {"task_name": "mrpc", "embedded": True, "output_dir": "out"}


def config(name, content, says, path="c.json"):
    return Case(f"configs: {name}", (path,), says, {path: content})


def with_values(name, says, **values):
    """One that is right but for `values`."""
    return config(name, json.dumps({**RIGHT, **values}), says)


def as_yaml(name, text, says):
    lines = "".join(f"{key}: {json.dumps(value)}\n" for key, value in RIGHT.items())
    return config(name, lines + text, says, "c.yaml")


def _doubling() -> str:
    """A list of two lists of two lists: a few lines that would be 2**30 numbers if they were written out."""
    lists = "[&a0 [1, 1], " + ", ".join(f"&a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 30)) + "]"
    return f"run_name: {lists}\n"


FORM = [
    Case("configs: not there", ("gone.json",), "gone.json cannot be read"),
    Case("configs: a folder", ("c.yaml",), "c.yaml cannot be read", make=lambda folder: (folder / "c.yaml").mkdir()),
    config("empty JSON", "", "c.json cannot be read"),
    config("empty YAML", "", "c.yaml is not a configuration", "c.yaml"),
    config("only a brace", "{", "c.json cannot be read"),
    config("a list", "[1, 2]", "c.json is not a configuration: it must be"),
    config("a number", "3", "c.json is not a configuration: it must be"),
    config("words", "task_name mrpc", "c.yaml is not a configuration: it must be", "c.yaml"),
    config("a comma too many", '{"task_name": "mrpc", "embedded": true,}', "c.json cannot be read"),
    config("single quotes", "{'task_name': 'mrpc'}", "c.json cannot be read"),
    config("a comment in JSON", '{"task_name": "mrpc" // the task\n}', "c.json cannot be read"),
    config("two objects", '{"task_name": "mrpc"}{"embedded": true}', "c.json cannot be read"),
    config("a key twice", '{"seed": 1, "task_name": "mrpc", "seed": 2}', "'seed' is given twice"),
    as_yaml("a key twice in YAML", "seed: 1\nseed: 2\n", "'seed' is given twice"),
    config("UTF-16", json.dumps(RIGHT).encode("utf-16"), ["c.json cannot be read", "UTF-8"]),
    config("Latin-1", json.dumps(RIGHT)[:-1].encode() + b', "run_name": "\xe9"}', ["c.json cannot be read", "UTF-8"]),
    config("compressed", gzip.compress(json.dumps(RIGHT).encode()), ["c.json cannot be read", "UTF-8"]),
    config("NUL bytes in JSON", b"\0" * 100, "c.json cannot be read"),
    config("NUL bytes in YAML", b"\0" * 100, "c.yaml cannot be read", "c.yaml"),
    config("endless depth", "[" * 20000, "c.json cannot be read"),
    config("endless depth in YAML", "[" * 2000, "c.yaml cannot be read", "c.yaml"),
    as_yaml("tabs", "\tseed: 1\n", "c.yaml cannot be read"),
    as_yaml("an object of Python", "seed: !!python/object/apply:os.system ['touch ran']\n", "c.yaml cannot be read"),
    as_yaml("two documents", "---\nseed: 1\n", "c.yaml cannot be read"),
    as_yaml("a list that doubles thirty times", _doubling(), "c.yaml cannot be read: its aliases expand to more than"),
]

VALUES = [
    with_values("no such name", "learning_rat", learning_rat=1),
    config("a file without end", "#" * 1_000_001, "more than 1,000,000 bytes", "c.yaml"),
    as_yaml("a number for a name", "7: 8\n", "c.yaml is not a configuration"),
    as_yaml("a list for a name", "[1, 2]: 8\n", "c.yaml"),
    with_values("text for a number", "learning_rate='fast' is not accepted", learning_rate="fast"),
    with_values("a list for a number", "seed=[1] is not accepted", seed=[1]),
    with_values("a table for a number", "max_steps={'at': 1} is not accepted", max_steps={"at": 1}),
    with_values("nothing for a number", "seed=None is not accepted", seed=None),
    with_values("a number beyond floats", "learning_rate=", learning_rate=10**400),
    config("NaN", json.dumps({**RIGHT, "learning_rate": float("nan")}), "learning_rate=nan is not accepted"),
    as_yaml("a date for a number", "seed: 2024-01-01\n", "seed=datetime.date(2024, 1, 1) is not accepted"),
    with_values("text for a length", "max_seq_length='long' is not accepted", max_seq_length="long"),
    with_values("a fraction for a length", "max_seq_length=12.5 is not accepted", max_seq_length=12.5),
    with_values("a list of samples", "max_train_samples=[1] is not accepted", max_train_samples=[1]),
    with_values("neither true nor false", "embedded='perhaps' is not accepted", embedded="perhaps"),
    with_values("a number for a file", "train_file=5 is not accepted", train_file=5, embedded=False),
    with_values("a number for a task", "task_name=5 is not accepted", task_name=5),
    with_values("a list of models", "model_name_or_path=['a', 'b'] is not accepted", model_name_or_path=["a", "b"]),
    with_values("NUL in a path", "data_dir='a\\x00b' is not accepted", data_dir="a\0b", embedded=False),
    with_values("NUL in the output folder", "output_dir='a\\x00b' is not accepted", output_dir="a\0b"),
    config("half a character", '{"task_name": "mrpc", "output_dir": "out", "data_dir": "\\ud800"}', "data_dir="),
    as_yaml("a word for a strategy", "eval_strategy: maybe\n", "eval_strategy='maybe' is not accepted"),
    as_yaml("a precision twice", "fp16: yes\nbf16: yes\n", "fp16=True and bf16=True exclude each other"),
    config("no task", '{"output_dir": "out"}', "There is nothing to train on"),
]

CONFIGS = [*FORM, *VALUES]
