"""The definition of a case of bad input. Each kind of input has its own module."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.examples.conftest import EMBEDDED

HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
ROWS = "1\t0\t0\tthe boat is red\tthe red boat\n0\t0\t0\tthe boat is red\ta man sleeps\n" * 2
TASK = ("--task_name", "mrpc")
EMBEDDED_TASK = (*TASK, "--embedded")
# This is a configuration and a tokenizer without weights, for cases that are refused before a model is loaded.
NO_WEIGHTS = ("--model_name_or_path", str(EMBEDDED))
TSV = (*TASK, "--data_dir", "data", *NO_WEIGHTS, "--do_train")
TSV_FILES = {"data/train.tsv": HEADER + ROWS, "data/dev.tsv": HEADER + ROWS}
# These train the small model that conftest.py makes.
STEPS = ("--max_steps", "4", "--save_steps", "2", "--save_strategy", "steps")
TRAIN = (*TASK, "--data_dir", "data", "--model_name_or_path", "model", "--do_train", "--disable_tqdm", "True", *STEPS)


def split(words: str | Sequence[str]) -> Sequence[str]:
    return shlex.split(words) if isinstance(words, str) else words


@dataclass(frozen=True)
class Case:
    """A command that has to be refused.

    Args:
        command: The words after the program's name. `out` is the output folder of run_glue.py.
        says: Parts that the message has to contain.
        make: A function that prepares the working folder further.
        uses: Folders of the shared run that are copied to the working folder: "model", "out".
    """

    name: str
    command: Sequence[str]
    says: str | Sequence[str]
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    make: Callable[[Path], None] | None = None
    uses: Sequence[str] = ()
    program: str = "run_glue.py"
    environ: Mapping[str, str] = field(default_factory=dict)
    status: int = 2

    def prepare(self, folder: Path) -> None:
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        if self.make is not None:
            self.make(folder)


def snapshot(folder: Path) -> dict[str, bytes | str | None]:
    """Returns every path below `folder`, with the content of files and the targets of links."""
    found: dict[str, bytes | str | None] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = str(path.readlink())
        else:
            found[name] = path.read_bytes() if path.is_file() else None
    return found
