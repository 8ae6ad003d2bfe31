"""A record of a run with everything in it, made by hand, and a run that leaves one."""

import copy
import json
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import mps_trainer.reports
from mps_trainer.reports.record import NAME, RunRecord

RECORD: dict[str, Any] = {
    "format": 1,
    "name": "glue",
    "outcome": {"kind": "finished", "text": "", "step": 4, "max_steps": 4},
    "history": [
        {"loss": 0.9, "grad_norm": 2.0, "learning_rate": 5e-5, "epoch": 0.5, "step": 1},
        {"loss": 0.7, "grad_norm": 1.5, "learning_rate": 4e-5, "epoch": 1.0, "step": 2},
        {"eval_loss": 0.8, "eval_accuracy": 0.5, "eval_runtime": 1.0, "epoch": 1.0, "step": 2},
        {"loss": 0.5, "grad_norm": 1.0, "learning_rate": 3e-5, "epoch": 1.5, "step": 3},
        {"loss": 0.4, "grad_norm": 0.5, "learning_rate": 2e-5, "epoch": 2.0, "step": 4},
        {"eval_loss": 0.6, "eval_accuracy": 0.75, "eval_runtime": 1.0, "epoch": 2.0, "step": 4},
        {"train_runtime": 8.0, "train_loss": 0.6, "train_samples_per_second": 8.5, "epoch": 2.0, "step": 4},
    ],
    "sessions": [
        {
            "first_step": 0, "offset": 0.0, "begun": 1.7e9, "seconds": 4.0,
            "marks": [[0, 0.0, 0.0, None, None, 2**30], [2, 2.0, 9600.0, None, None, 2**30]],
        },
        {
            "first_step": 2, "offset": 4.0, "begun": 1.7e9 + 3600, "seconds": 4.0,
            "marks": [[2, 4.0, 9600.0, None, None, 2**30], [4, 7.0, 19200.0, None, None, 2**31]],
        },
    ],
    "events": [
        {"kind": "begin", "step": 0, "seconds": 0.0, "text": "", "took": 0.0},
        {"kind": "evaluation", "step": 2, "seconds": 3.0, "text": "eval", "took": 1.0},
        {"kind": "checkpoint", "step": 2, "seconds": 3.5, "text": "", "took": 0.0},
        {"kind": "stop", "step": 2, "seconds": 4.0, "text": "by SIGTERM", "took": 0.0},
        {"kind": "resume", "step": 2, "seconds": 4.0, "text": "from out/checkpoint-2", "took": 0.0},
        {"kind": "evaluation", "step": 4, "seconds": 6.5, "text": "eval", "took": 1.0},
        {"kind": "end", "step": 4, "seconds": 8.0, "text": "", "took": 0.0},
    ],
    "best": {"metric": 0.75, "step": 4, "name": "accuracy", "checkpoint": "checkpoint-4"},
    "device": {
        "device": "mps", "type": "mps", "reason": "accelerator='auto' takes the first usable", "simulated": True,
        "rejected": [{"name": "cuda", "why": "CUDA does not exist on macOS", "remedy": "train elsewhere"}],
        "notes": ["a note"], "world_size": 1,
    },
    "model": {"class": "Bert", "parameters": 1000, "trained": 10, "dtype": "float32", "operations_per_token": 60},
    "data": {
        "batch": 8, "batch_per_device": 4, "accumulation": 2, "processes": 1, "sampling": "bucket_by_length",
        "examples": 16, "buckets": [8, 16],
        "padded": [
            {"length": 8, "batches": 2, "real": 50, "tokens": 64},
            {"length": 16, "batches": 2, "real": 100, "tokens": 128},
        ],
        "lengths": {"shortest": 4, "median": 9, "longest": 16, "mean": 9.4},
    },
    "origin": {"command": "python train.py", "commit": "0" * 40, "dataset": "glue, mrpc", "base_model": "bert-base"},
    "classification": {
        "examples": 16, "wrong": 4, "classes": ["no", "yes"], "confusion": [[7, 1], [3, 5]],
        "mistakes": [{"row": 3, "text": "two words", "label": "yes", "predicted": "no", "confidence": 0.97}],
    },
    "fallback": {"text": "Counted.", "operators": [{"name": "aten::cumsum", "calls": 3, "shapes": 1}]},
    "arguments": {"output_dir": "out", "learning_rate": 5e-5, "seed": 7},
    "changed": {"seed": [7, 42]},
    "environment": {
        "mps_trainer": "0.1", "torch_version": "2.13", "python_version": "3.11", "machine": "arm64",
        "system": "Darwin",
    },
}  # fmt: skip


class Elements(HTMLParser):
    """Holds every element of a page with its attributes, the rows of its tables, and the text that is no script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, Any]]] = []
        self.rows: list[list[str]] = []
        self.text, self._depth, self._in_cell = "", 0, False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._depth += tag in ("script", "style")
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._depth -= tag in ("script", "style")
        self._in_cell = self._in_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        self.text += "" if self._depth else data
        if self._in_cell:
            self.rows[-1][-1] += data


def rows_of(page: str) -> list[list[str]]:
    return Elements(page).rows


@pytest.fixture
def data() -> dict[str, Any]:
    return copy.deepcopy(RECORD)


@pytest.fixture
def record(data) -> RunRecord:
    return RunRecord.from_dict(data)


@pytest.fixture
def recorded(tmp_path, data):
    """`recorded(name, **changes)` is a folder with the record, changed."""

    def make(folder_name: str = "run", **changes: Any) -> Path:
        folder = tmp_path / folder_name
        folder.mkdir()
        (folder / NAME).write_text(json.dumps({**data, **changes}))
        return folder

    return make


@pytest.fixture
def report_of(trained, tmp_path):
    """`report_of(...)` trains and gives the Trainer with what the record says afterwards."""

    def train(trainer: dict | None = None, resume: Any = None, **settings: Any):
        made = trained(trainer, resume, **{"report": True, "max_steps": 4, **settings})
        return made, read_back(tmp_path / "run")

    return train


@pytest.fixture
def without_pygal(monkeypatch):
    """Makes an import of what draws fail, as where pygal is not installed."""
    for name in ("pages", "charts"):
        monkeypatch.delitem(sys.modules, f"mps_trainer.reports.{name}", raising=False)
        monkeypatch.delattr(mps_trainer.reports, name, raising=False)
    monkeypatch.setitem(sys.modules, "pygal", None)


def read_back(folder: Path) -> dict[str, Any]:
    return json.loads((folder / NAME).read_text())
