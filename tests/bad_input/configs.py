"""JSON and YAML files of arguments, as the only argument of run_glue.py."""

import json

from .cases import Case

RIGHT = {"task_name": "mrpc", "embedded": True, "output_dir": "out"}


def config(name, content, says, path="c.json"):
    return Case(f"configs: {name}", (path,), says, {path: content})


def with_values(name, says, **values):
    return config(name, json.dumps({**RIGHT, **values}), says)


def as_yaml(name, text, says):
    lines = "".join(f"{key}: {json.dumps(value)}\n" for key, value in RIGHT.items())
    return config(name, lines + text, says, "c.yaml")


CONFIGS = [
    Case("configs: not there", ("gone.json",), "The file of arguments gone.json cannot be loaded"),
    config("empty YAML", "", "c.yaml cannot be loaded: it is no table", "c.yaml"),
    config("a comment in JSON", '{"task_name": "mrpc" // the task\n}', "c.json cannot be loaded"),
    config("endless depth in YAML", "[" * 2000, "c.yaml cannot be loaded", "c.yaml"),
    as_yaml("an object of Python", "seed: !!python/object/apply:os.system ['touch ran']\n", "c.yaml cannot be loaded"),
    # values
    with_values("no such name", "learning_rat", learning_rat=1),
    as_yaml("a number for a name", "7: 8\n", "c.yaml cannot be loaded: it is no table"),
    as_yaml("a date for a number", "seed: 2024-01-01\n", "seed=datetime.date(2024, 1, 1) is not accepted"),
    with_values("a number for a file", "train_file=5 is not accepted", train_file=5, embedded=False),
]
