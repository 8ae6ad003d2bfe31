"""Runs the shell blocks of pages in order, word for word, as a reader pastes them into a terminal.

    python3 -m tests.docs.as_written [PAGE ...]

It runs in the root of a checkout that can be thrown away, and uses only the standard library: the blocks themselves
make `.venv` there. A block that cannot run has a comment before it that names the reason, as in `<!-- needs: mac -->`
(REASONS). Python blocks under "Save this as NAME" become files. The exit status is 1 if a block fails.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from .pages import ROOT, Block, blocks_of

PAGES = (
    "install",
    "first-run",
    "pretrained-classifier",
    "launch",
    "distributed",
    "fsdp",
    "simulator",
    "several-macs",
    "export",
)
SHELLS = ("bash", "console", "zsh")
REASONS = {
    "hub": "it downloads a model from the Hugging Face hub",
    "github": "it clones a repository from GitHub",
    "mac": "it needs a Mac, or several of them",
    "torch": "it downloads another build of torch, of several GB",
}
HUNG_AFTER = 900  # seconds

TRAIN = '''\
"""Stands in for the reader's script."""

import sys

import torch

from mps_trainer import Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x, labels):
        return {"loss": torch.nn.functional.cross_entropy(self.layer(x), labels)}


backend = sys.argv[sys.argv.index("--ddp_backend") + 1] if "--ddp_backend" in sys.argv else None
rows = [{"x": torch.randn(4), "labels": i % 2} for i in range(16)]
Trainer(Model(), TrainingArguments("out", max_steps=4, ddp_backend=backend), train_dataset=rows).train()
'''

# A tiny model and the table of the page take the places of what pretrained-classifier.md downloads.
CLASSIFIER = """\
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

tokenizer = AutoTokenizer.from_pretrained("examples/text-classification/embedded")
tokenizer.save_pretrained("tiny")
size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), **size)).save_pretrained("tiny")
"""


def is_run(block: Block) -> bool:
    """Returns True for a shell block without a reason not to run it."""
    return block.language in SHELLS and block.kind != "needs"


def shell_blocks(pages: tuple[str, ...] = PAGES) -> list[Block]:
    """Returns the shell blocks of pages of docs/, run or not."""
    blocks = [block for page in pages for block in blocks_of(ROOT / "docs" / f"{page}.md")]
    return [block for block in blocks if block.language in SHELLS]


def saved_scripts(page: Path) -> dict[str, str]:
    """Returns the Python blocks that a page asks the reader to save, by file name."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found = {}
    for block in blocks_of(page):
        if block.language == "python":
            before = "\n".join(lines[max(0, block.line - 5) : block.line - 1])
            if named := re.search(r"[Ss]ave this as `?([\w.]+\.py)`?", before):
                found[named[1]] = block.text
    return found


def prepare(page: str) -> None:
    """Writes the files that a page takes as given, and those that it asks the reader to save."""
    scripts = saved_scripts(ROOT / "docs" / f"{page}.md")
    if page == "pretrained-classifier":
        table, rows = (
            next(block.text for block in blocks_of(ROOT / "docs" / f"{page}.md") if words in block.text)
            for words in ("ClassLabel", "text,label")
        )
        for name in ("train.csv", "dev.csv"):
            Path(name).write_text(rows + "\n", encoding="utf-8")
        script = scripts["classifier.py"].replace("distilbert/distilbert-base-uncased", "tiny")
        scripts["classifier.py"] = script.replace('data = load_dataset("nyu-mll/glue", "sst2")', table)
        subprocess.run([".venv/bin/python", "-c", CLASSIFIER], check=True)
    if page in ("launch", "several-macs"):
        Path("my_package").mkdir(exist_ok=True)
        Path("my_package", "__init__.py").touch()
        scripts |= {"train.py": TRAIN, "my_package/train.py": TRAIN}
    for name, text in scripts.items():
        Path(name).write_text(text + "\n", encoding="utf-8")


def run(block: Block) -> bool:
    """Runs a block as a shell with `.venv` activated does, with Enter as the answer to each question."""
    start = time.monotonic()
    environ = {**os.environ, "PATH": f"{Path('.venv', 'bin').resolve()}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text],
        input="\n" * 20,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HUNG_AFTER,
    )
    print(f"{block}: status {done.returncode}, {time.monotonic() - start:.0f} s", flush=True)
    if done.returncode != 0:
        print(block.text, *done.stdout.splitlines()[-30:], sep="\n  ", flush=True)
    return done.returncode == 0


def main(pages: list[str]) -> int:
    failed = 0
    for page in pages or PAGES:
        prepare(page)
        failed += sum(not run(block) for block in shell_blocks((page,)) if is_run(block))
    blocks = shell_blocks(tuple(pages) or PAGES)
    left_out = Counter(REASONS[block.label] for block in blocks if not is_run(block))
    print(f"{sum(map(is_run, blocks)) - failed} blocks passed, {failed} failed, {left_out.total()} were not run:")
    for reason, count in left_out.items():
        print(f"  {count}: {reason}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
