"""`mps-trainer example`: copies the examples that come with the package to a folder of your own."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import MisconfigurationException

PACKAGE = Path(__file__).resolve().parents[1]
_LEFT_OUT = ("__pycache__", "trainer_output")


@dataclass(frozen=True)
class Example:
    """A folder of `examples/`."""

    says: str  # in a line
    runs: str  # the first command in the folder, after the name of Python
    needs: tuple[str, ...]  # modules
    install: tuple[str, ...] = ("mps_trainer[examples]",)  # the packages of these modules


EXAMPLES = {
    "text-classification": Example(
        "texts: run_glue.py, or train.py with a pretrained model",
        "run_glue.py --task_name mrpc --embedded --output_dir mrpc",
        ("datasets", "evaluate", "sklearn", "scipy"),
    ),
    "image-classification": Example(
        "images: train.py, or cv_example.py as in Accelerate", "train.py --output_dir beans", ("datasets", "PIL")
    ),
    "language-modeling": Example(
        "chats, by LoRA and TRL: train.py",
        "train.py --dataset_name chats.jsonl --output_dir chats",
        ("trl", "peft", "datasets"),
        ("mps_trainer[libraries]",),
    ),
    "sentence-embeddings": Example(
        "pairs of texts: train.py",
        "train.py --dataset_name pairs.csv --output_dir embeddings",
        ("sentence_transformers", "datasets"),
        ("mps_trainer[libraries]",),
    ),
    "notebooks": Example(
        "from the device to a trained model, in Jupyter",
        "-m notebook train_on_your_mac.ipynb",
        ("datasets", "PIL", "matplotlib", "notebook"),
        ("mps_trainer[examples]", "matplotlib", "notebook"),
    ),
}


def add_parser(commands: Any) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "example",
        opening="example: mps-trainer example text-classification glue",
        help="copy an example to a folder of your own",
        description="Without NAME, list the examples. With NAME, copy that example to the folder DIR and print how "
        "to run it. DIR must be new or empty. run_glue.py and the notebook need no network; train.py gets a model "
        "from the hub unless you name a folder.",
    )
    command.add_argument("name", metavar="NAME", nargs="?", choices=tuple(EXAMPLES), help=", ".join(EXAMPLES))
    command.add_argument("folder", metavar="DIR", nargs="?", help="the folder of the copy")
    return command


def run(arguments: argparse.Namespace) -> int:
    """Lists or copies; returns 0."""
    if arguments.name is None:
        width = max(map(len, EXAMPLES))
        print("\n".join(f"{name:{width}}  {example.says}" for name, example in EXAMPLES.items()))
        print("\nmps-trainer example NAME DIR copies one to a folder of your own.")
        return 0
    if not arguments.folder:
        raise MisconfigurationException(
            f"A folder to copy the example to is missing. Name one: mps-trainer example {arguments.name} DIR."
        )
    target = Path(arguments.folder)
    copied = copy(source_of(arguments.name), target)
    print(f"Copied {copied} files to {target}; README.md there describes them. To run the example:\n")
    print("\n".join(f"  {line}" for line in next_commands(EXAMPLES[arguments.name], target)))
    return 0


def source_of(name: str) -> Path:
    """Returns the folder of an example: in the installed package, or beside it in a clone.

    Raises:
        MisconfigurationException: if it is in neither, as when only the package's folder was copied.
    """
    for folder in (PACKAGE / "_examples" / name, PACKAGE.parent / "examples" / name):
        if folder.is_dir():
            return folder
    raise MisconfigurationException(
        f"This installation in {PACKAGE} has no examples. Install a wheel of mps_trainer, or work in a clone."
    )


def copy(source: Path, target: Path) -> int:
    """Copies the files of an example, all or none, and returns their number.

    Raises:
        MisconfigurationException: for a target that has something in it, is a file, or cannot be written.
    """
    files = [path for path in sorted(source.rglob("*")) if path.is_file() and path.suffix != ".pyc"]
    names = [path.relative_to(source) for path in files]
    names = [name for name in names if not any(part in _LEFT_OUT or part.startswith(".") for part in name.parts)]
    try:
        if target.is_dir() and any(target.iterdir()):
            raise MisconfigurationException(
                f"{target} is not empty, and nothing was copied. Name a folder that does not exist yet."
            )
        if target.exists() and not target.is_dir():
            raise MisconfigurationException(f"{target} is a file, and nothing was copied. Name a folder.")
        for name in names:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, target / name)  # an installation may be read-only, its copy is not
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)  # it was new or empty
        raise MisconfigurationException(
            f"The example cannot be copied to {target}: {error.strerror}. Name a folder that you may write to."
        ) from error
    return len(names)


def next_commands(example: Example, target: Path) -> list[str]:
    """Returns the commands to type after the copy, in the current folder."""
    python = _python()
    missing = [module for module in example.needs if find_spec(module) is None]
    install = [f"{python} -m pip install {' '.join(map(shlex.quote, example.install))}"] if missing else []
    return [*install, f"cd {shlex.quote(str(target))}", f"{python} {example.runs}"]


def _python() -> str:
    """Returns `python` if that is the one that runs this, otherwise its absolute path."""
    found = shutil.which("python")
    if found is not None and os.path.abspath(found) == os.path.abspath(sys.executable):
        return "python"
    return shlex.quote(os.path.abspath(sys.executable))
