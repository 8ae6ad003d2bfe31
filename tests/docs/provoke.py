"""Code that provokes each message of the page on troubleshooting, by its label. Each runs in its own folder."""

import errno
import gc
import logging
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import datasets
import torch

from mps_trainer import DeviceRequest, Trainer, TrainingArguments, resolve
from mps_trainer.checkpoints import folders, output_folder
from mps_trainer.errors import explanation_of
from mps_trainer.loop import nonfinite
from mps_trainer.model import large_product_warning
from mps_trainer.simulator import simulated_mps
from tests.tiny import tiny

from .machines import MACHINES, ROSETTA

PROVOCATIONS: dict[str, Callable[[], str]] = {}


def provokes(
    label: str, read: Callable[[Exception], str | None] = str
) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """Registers a function that has to raise. `read` returns the message from the error."""

    def register(function: Callable[[], object]) -> Callable[[], object]:
        def message() -> str:
            try:
                function()
            except Exception as error:
                return read(error) or ""
            raise AssertionError(f"{label} was not refused")

        PROVOCATIONS[label] = message
        return function

    return register


MPS = DeviceRequest(accelerator="mps")
for name, facts in {"rosetta": ROSETTA, **{name: MACHINES[name] for name in ("old-macos", "virtual-mac")}}.items():
    provokes(name)(lambda facts=facts: resolve(MPS, facts))


PROVOCATIONS["late-fallback"] = lambda: resolve(DeviceRequest(), MACHINES["late-fallback"]).notes[0]


def first_logged(logger: logging.Logger, function: Callable[[], object]) -> str:
    with mock.patch.object(logger, "warning") as warning:
        function()
    message, *values = warning.call_args_list[0].args
    return message % tuple(values)


def _warn_of_large_products() -> None:
    head = torch.nn.Module()
    head.lm_head = torch.nn.Linear(768, 50_257, device="meta")
    large_product_warning._warn_once.cache_clear()
    told = large_product_warning.told_of_large_products(head, torch.device("mps"), "Apple M1")
    with mock.patch.object(torch, "__version__", "2.13.0"), told:
        pass


PROVOCATIONS["large-products"] = lambda: first_logged(large_product_warning.logger, _warn_of_large_products)


def first_sentence(error: Exception) -> str:
    return str(error).partition(": ")[0]


@provokes("no-kernel", first_sentence)
def _() -> None:
    with simulated_mps():
        scores, targets = torch.randn(2, 5, device="mps"), torch.ones(2, dtype=torch.long, device="mps")
        torch.nn.functional.multi_margin_loss(scores, targets)


@provokes("float64", first_sentence)
def _() -> None:
    with simulated_mps():
        torch.zeros(2, dtype=torch.float64).to("mps")


class Line(torch.nn.Module):
    """A model whose loss is (weight * x - labels)^2. Without labels it returns no loss."""

    def __init__(self, weights: int = 1) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(weights))

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        guess = (self.weight * x.float()[..., None]).sum(-1)
        return {"guess": guess} if labels is None else {"loss": (guess - labels).square().mean(), "guess": guess}


ROWS = [{"x": i, "labels": 2 * i} for i in range(4)]


def trainer(rows: Any = ROWS, model: torch.nn.Module | None = None, **settings: Any) -> Trainer:
    args = TrainingArguments(
        **{"output_dir": "out", "use_cpu": True, "disable_tqdm": True, "max_steps": 1, **settings}
    )
    return Trainer(model or Line(), args, train_dataset=rows)


@provokes("processes")
def _() -> None:
    with mock.patch.dict(os.environ, {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}):
        trainer()


provokes("no-column")(lambda: trainer(datasets.Dataset.from_dict({"sentence": ["a"], "idx": [0]})).train())
provokes("no-loss")(lambda: trainer([{"x": 1}, {"x": 2}]).train())


@provokes("label-outside")
def _() -> None:
    rows = [{"input_ids": [3, 4], "labels": 5 if row == 2 else 0} for row in range(4)]
    trainer(rows, model=tiny("BertForSequenceClassification")).train()


@provokes("out-of-memory")
def _() -> None:
    class Long(Line):
        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
            torch.empty(12 * 2**30, dtype=torch.uint8, device=x.device)
            return super().forward(x, labels)

    gc.collect()  # The message counts tensors that cycles of earlier runs keep.
    with simulated_mps(memory="10.7GB"):  # a Mac with 16 GB has this limit
        trainer(model=Long(2**20), use_cpu=False).train()


@provokes("damaged")
def _() -> None:
    trainer(save_steps=1).train()
    os.truncate("out/checkpoint-1/model.safetensors", 10)
    trainer(max_steps=2).train(resume_from_checkpoint="out/checkpoint-1")


@provokes("folder-taken")
def _() -> None:
    Path("out").mkdir()
    Path("out", folders.LOCK).write_text("process 4711 on studio.local", encoding="utf-8")
    with mock.patch.object(output_folder.fcntl, "lockf", side_effect=BlockingIOError(errno.EAGAIN, "taken")):
        trainer().train()


NAN = [{**row, "x": math.nan} if row["x"] == 2 else row for row in ROWS]
TOKENS = [{"input_ids": [3] * length, "labels": 1} for length in (1, 2)]


def sequential(rows: Any, **settings: Any) -> Trainer:
    return trainer(rows, train_sampling_strategy="sequential", **settings)


PROVOCATIONS["nonfinite-told"] = lambda: first_logged(
    nonfinite.logger, lambda: sequential(NAN, max_steps=3, logging_steps=3).train()
)


provokes("nothing-pads", explanation_of)(lambda: sequential(TOKENS, remove_unused_columns=False).train())


@provokes("removed-column", explanation_of)
def _() -> None:
    made = trainer([{**row, "text": "a film"} for row in ROWS])
    made.data_collator = lambda rows: {"x": [len(row["text"]) for row in rows]}
    made.train()


provokes("no-input", explanation_of)(lambda: trainer([{"value": 1, "labels": 2}] * 4).train())


@provokes("float64-buffer")
def _() -> None:
    with simulated_mps():
        line = Line()
        line.register_buffer("scale", torch.ones(1, dtype=torch.float64))
        trainer(model=line, use_cpu=False)
