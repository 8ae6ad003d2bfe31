"""Runs of whole scripts that fine-tune for MRPC: this project's example, and the same for transformers' Trainer."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .benchmark import Options, SkippedError
from .peers import PEERS
from .worker import ROOT, run_process

EXAMPLE = ROOT / "examples" / "text-classification"
OURS, THEIRS = EXAMPLE / "run_glue.py", ROOT / "benchmarks" / "scripts" / "transformers_glue.py"
Script = Path | Callable[[Path], Path]  # or a function that writes it into a folder
WATCHED = ROOT / "benchmarks" / "watched.py"


def real(options: Options) -> list[str]:
    """The arguments that name the real MRPC and the pretrained MiniLM.

    Raises SkippedError where they are not in the folder that the options name.
    """
    data, model = Path(options.data, "glue", "MRPC"), Path(options.data, "models", "minilm-l6")
    for folder in (data, model):
        if not folder.is_dir():
            raise SkippedError(f"There is no {folder}. Name the folder with glue/MRPC and models/minilm-l6: --data.")
    return ["--data_dir", str(data.resolve()), "--model_name_or_path", str(model.resolve())]


def shown(arguments: list[str], options: Options) -> list[str]:
    """`arguments` as a result has them: where the data are on this machine is nobody's business."""
    return [argument.replace(str(Path(options.data).resolve()), "DATA") for argument in arguments]


def scripts(options: Options) -> tuple[dict[str, Path], dict[str, str]]:
    """The scripts of those peers that have one and are asked for; who of them cannot run, and why."""
    found = {name: path for name, path in (("ours", OURS), ("transformers", THEIRS)) if name in options.peers}
    reasons = {name: reason for name in found if (reason := PEERS[name].why_left_out()) is not None}
    return {name: path for name, path in found.items() if name not in reasons}, reasons


def import_changed(folder: Path) -> Path:
    """Writes the script for transformers' Trainer with this project's import into `folder`. Returns its path."""
    text = THEIRS.read_text(encoding="utf-8")
    changed = text.replace("    Trainer,\n    TrainingArguments,\n", "").replace(
        "\nMETRIC = ", "\nfrom mps_trainer import Trainer, TrainingArguments\n\nMETRIC = "
    )
    if changed.count("TrainingArguments") != text.count("TrainingArguments"):
        raise ValueError(f"{THEIRS} imports the Trainer in another way.")
    path = folder / "mps_trainer_glue.py"
    path.write_text(changed.replace("Path(__file__)", f"Path({str(THEIRS)!r})"), encoding="utf-8")
    return path


def run(script: Script, arguments: list[str]) -> dict[str, Any]:
    """Trains and evaluates in a process of its own. Its seconds, what was noted of it, and what it learned."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        out, notes = Path(folder, "out"), Path(folder, "notes.json")
        path = script if isinstance(script, Path) else script(Path(folder))
        task = ["--task_name", "mrpc"] if script == OURS else []
        fixed = ["--do_train", "--do_eval", "--use_cpu", "--output_dir", str(out), "--report_to", "none"]
        seconds = run_process([str(WATCHED), str(notes), str(path), *task, *arguments, *fixed])
        noted = json.loads(notes.read_text(encoding="utf-8"))
        results = json.loads((out / "all_results.json").read_text(encoding="utf-8"))
    learned = {"dev accuracy": results["eval_accuracy"], "training loss": results["train_loss"]}
    times = {"seconds": seconds, "evaluation_seconds": results["eval_runtime"]}
    return {**times, **noted, "learned": learned}
