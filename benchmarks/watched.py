"""Runs a script as `python SCRIPT` would, and notes what its training does: `... watched.py RESULT.json SCRIPT ARGS`.

The script is as it is: the forward pass of transformers' BERT is wrapped when that module is loaded, and not before,
so that nothing is imported that the script would not import by itself, and not at another time.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import runpy
import sys
import time
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

MODULE, MODEL = "transformers.models.bert.modeling_bert", "BertForSequenceClassification"


def _is_embedding(module: Any) -> bool:
    """Also where a Trainer has put a kind of its own in its place. By name, as torch is not to be imported for it."""
    return any(kind.__name__ == "Embedding" for kind in type(module).__mro__)


class Notes:
    """Keeps times and sizes of the forward passes in training mode. Times are seconds since the process began."""

    def __init__(self) -> None:
        self.started = float(os.environ["BENCHMARK_STARTED"])
        self.begun: list[float] = []
        self.computed: list[float] = []  # processor time until then
        self.padded_tokens = self.real_tokens = self.parameters = 0
        self.shapes: set[tuple[int, ...]] = set()

    def add(self, model: Any, batch: dict[str, Any]) -> None:
        if not self.begun:
            # An embedding is looked up, not multiplied: its weights take no floating-point operations.
            looked_up = sum(part.weight.numel() for part in model.modules() if _is_embedding(part))
            self.parameters = sum(parameter.numel() for parameter in model.parameters()) - looked_up
        self.begun.append(time.time() - self.started)
        self.computed.append(time.process_time())
        self.shapes.add(tuple(batch["input_ids"].shape))
        self.padded_tokens += batch["input_ids"].numel()
        self.real_tokens += int(batch["attention_mask"].sum())

    def result(self) -> dict[str, Any]:
        """`peak_rss_mib` is the process's; The times of training go from the first forward pass to the last."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return {
            **{"steps": len(self.begun), "parameters": self.parameters, "distinct_shapes": len(self.shapes)},
            **{"padded_tokens": self.padded_tokens, "real_tokens": self.real_tokens, "peak_rss_mib": peak / 2**20},
            **{"first_step_seconds": self.begun[0] if self.begun else None},
            **{"first_step_processor_seconds": self.computed[0] if self.computed else None},
            **{"training_seconds": self.begun[-1] - self.begun[0] if len(self.begun) > 1 else None},
            **{"training_processor_seconds": self.computed[-1] - self.computed[0] if len(self.begun) > 1 else None},
        }


class Finder(MetaPathFinder):
    """Wraps the model's forward pass after its module was loaded the usual way."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != MODULE:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_wrap(module: Any) -> None:
                load(module)
                self.wrap(getattr(module, MODEL))

            spec.loader.exec_module = load_and_wrap  # type: ignore[method-assign]
        return spec

    def wrap(self, model: Any) -> None:
        forward = model.forward

        @functools.wraps(forward)  # a Trainer reads the names of its arguments
        def noted(this: Any, *args: Any, **batch: Any) -> Any:
            if this.training:
                self.notes.add(this, batch)
            return forward(this, *args, **batch)

        model.forward = noted


def main() -> None:
    result, script = sys.argv[1:3]
    notes = Notes()
    sys.meta_path.insert(0, Finder(notes))
    sys.argv = sys.argv[2:]
    sys.path[0] = str(Path(script).parent)  # where `python SCRIPT` looks for the script's own modules
    status: Any = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        status = end.code
    Path(result).write_text(json.dumps(notes.result()), encoding="utf-8")
    sys.exit(status)


if __name__ == "__main__":
    main()
