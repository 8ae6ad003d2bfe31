"""Defines a case of bad input, and what all cases share. Each kind of input has its own module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.examples.conftest import EMBEDDED

HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
ROWS = "1\t0\t0\tthe boat is red\tthe red boat\n0\t0\t0\tthe boat is red\ta man sleeps\n" * 2
TASK = ("--task_name", "mrpc")
EMBEDDED_TASK = (*TASK, "--embedded")
# a configuration and a tokenizer without weights: enough for what is refused before a model is loaded
NO_WEIGHTS = ("--model_name_or_path", str(EMBEDDED))
TSV = (*TASK, "--data_dir", "data", *NO_WEIGHTS, "--do_train")
TSV_FILES = {"data/train.tsv": HEADER + ROWS, "data/dev.tsv": HEADER + ROWS}
# everything that training needs, in a folder of its own; see conftest.py
STEPS = ("--max_steps", "4", "--save_steps", "2", "--save_strategy", "steps")
TRAIN = (*TASK, "--data_dir", "data", "--model_name_or_path", "model", "--do_train", "--disable_tqdm", "True", *STEPS)


@dataclass(frozen=True)
class Case:
    """A command that has to be refused.

    Args:
        name: what is wrong.
        command: the words after the program's name, where `out` is the output folder of run_glue.py.
        says: what the message has to have in it.
        files: what is in the working folder, by path.
        make: does the rest there; it is given the working folder.
        uses: folders of the shared run that are copied to the working folder: "model", "out".
        program: an example's script, or mps-trainer.
        environ: variables that are set.
        status: the exit status.
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

    @property
    def fragments(self) -> Sequence[str]:
        return [self.says] if isinstance(self.says, str) else self.says


def snapshot(folder: Path) -> dict[str, bytes | str | None]:
    """Every path below `folder`, with the content of files and the targets of links."""
    found: dict[str, bytes | str | None] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = str(path.readlink())
        else:
            found[name] = path.read_bytes() if path.is_file() else None
    return found
