"""Code that provokes each message of the page on troubleshooting, by its label. Each runs in its own folder."""

from __future__ import annotations

import errno
import logging
import math
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import datasets
import torch
from torch.utils.data import IterableDataset
from transformers import BertConfig, BertForSequenceClassification, TrainerCallback

from mps_trainer import DeviceRequest, MachineFacts, Trainer, TrainingArguments, resolve, trainer_checks
from mps_trainer.checkpoints import folders, output_folder
from mps_trainer.devices.large_products import Layer, warning_of_width
from mps_trainer.devices.recorded import read_facts
from mps_trainer.distributed import Processes, fsdp
from mps_trainer.errors import explanation_of
from mps_trainer.model.precision import MixedPrecision
from mps_trainer.simulator import simulated_mps

from .machines import MACHINES, ROSETTA, mac, mac_without_mps

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


# For devices, a request and a machine are enough.

MPS = DeviceRequest(accelerator="mps")
REFUSED: dict[str, tuple[DeviceRequest, MachineFacts]] = {
    "rosetta": (MPS, ROSETTA),
    "rosetta-without-torch": (
        DeviceRequest(),
        mac_without_mps(
            machine="x86_64",
            rosetta=True,
            python_executable="/usr/local/bin/python3",
            torch_version=None,
            mps_built=False,
            fallback_when_torch_loaded=None,
        ),
    ),
    "old-macos": (MPS, MACHINES["old-macos"]),
    "virtual-mac": (MPS, MACHINES["virtual-mac"]),
    "without-mps": (MPS, mac_without_mps(mps_built=False)),
    "no-metal": (MPS, mac_without_mps()),
    "launcher-on-mps": (DeviceRequest(), mac(world_size=2, rank=0, local_rank=0)),
    "backend-on-mps": (DeviceRequest(ddp_backend="gloo"), mac()),
    "two-mps-devices": (DeviceRequest(accelerator="mps", devices=2), mac()),
}
for name, (request, facts) in REFUSED.items():
    provokes(name)(lambda request=request, facts=facts: resolve(request, facts))


@provokes("recorded-facts")
def _() -> None:
    Path("facts.json").write_text('{"system": "Darwin", "memory_bytes": "16 GB"}', encoding="utf-8")
    read_facts("facts.json")


PROVOCATIONS["late-fallback"] = lambda: resolve(DeviceRequest(), MACHINES["late-fallback"]).notes[0]


@provokes("old-scaler")
def _() -> None:
    with mock.patch.object(torch, "__version__", "2.7.1"):
        MixedPrecision(torch.device("mps"), "fp16")


PROVOCATIONS["large-products"] = lambda: warning_of_width({"lm_head": Layer(768, 50_257)}, "2.13.0") or ""


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
    given = {name: settings.pop(name, None) for name in ("eval_dataset", "compute_metrics")}
    args = TrainingArguments(
        **{"output_dir": "out", "use_cpu": True, "disable_tqdm": True, "max_steps": 1, **settings}
    )
    return Trainer(model or Line(), args, train_dataset=rows, **given)


@provokes("processes")
def _() -> None:
    with mock.patch.dict(os.environ, {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}):
        trainer()


@provokes("fitting-in-several")
def _() -> None:
    args = TrainingArguments("out", use_cpu=True, auto_find_batch_size=True)
    trainer_checks.check_processes(args, Processes(0, 2))


provokes("sharding-in-one")(lambda: trainer(fsdp=True))
provokes("sharding-no-block")(
    lambda: fsdp.find_blocks(torch.nn.Sequential(Line()), {"transformer_layer_cls_to_wrap": ["BertLayer"]})
)
provokes("sharding-key")(lambda: TrainingArguments(fsdp=True, fsdp_config={"state_dict_typ": "SHARDED_STATE_DICT"}))
provokes("not-accepted")(lambda: TrainingArguments(eval_strategy="step"))
provokes("two-precisions")(lambda: TrainingArguments(fp16=True, bf16=True))
provokes("refused-argument")(lambda: TrainingArguments(optim="lomo"))
provokes("best-without-saving")(lambda: TrainingArguments(load_best_model_at_end=True, eval_strategy="epoch"))
provokes("no-eval-dataset")(lambda: trainer(eval_strategy="epoch"))


@provokes("unknown-metric")
def _() -> None:
    trainer(eval_dataset=ROWS, eval_strategy="steps", eval_steps=1, metric_for_best_model="f1").train()


def _deprecated() -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        TrainingArguments(evaluation_strategy="epoch")
    return str(caught[0].message)


PROVOCATIONS["deprecated"] = _deprecated


class Stream(IterableDataset):
    def __iter__(self):
        yield from ROWS


provokes("no-column")(lambda: trainer(datasets.Dataset.from_dict({"sentence": ["a"], "idx": [0]})).train())
provokes("no-loss")(lambda: trainer([{"x": 1}, {"x": 2}]).train())
provokes("float16-weights")(lambda: trainer(model=Line().half(), fp16=True).train())
provokes("nothing-trainable")(lambda: trainer(model=Line().requires_grad_(False)).train())
provokes("name-of-model")(lambda: trainer(model="bert-base-uncased"))
SPLITS = datasets.DatasetDict({name: datasets.Dataset.from_list(ROWS) for name in ("train", "test")})
provokes("several-splits")(lambda: trainer(SPLITS).train())
provokes("metrics-number")(lambda: trainer(eval_dataset=ROWS, compute_metrics=lambda prediction: 0.9).evaluate())


@provokes("label-outside")
def _() -> None:
    sizes = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4}
    rows = [{"input_ids": [3, 4], "labels": 5 if row == 2 else 0} for row in range(4)]
    trainer(rows, model=BertForSequenceClassification(BertConfig(vocab_size=8, **sizes))).train()


provokes("no-length")(lambda: trainer(Stream(), max_steps=-1).train())
provokes("empty-dataset")(lambda: trainer([]).train())
provokes("endless-run")(lambda: trainer(max_steps=-1, num_train_epochs=1e18).train())


@provokes("out-of-memory")
def _() -> None:
    class Huge(Line):
        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
            torch.empty(2**60, dtype=torch.uint8)  # an exbibyte
            return super().forward(x, labels)

    trainer(model=Huge(2**20)).train()


provokes("no-such-checkpoint")(lambda: trainer().train(resume_from_checkpoint="out/checkpoint-500"))
provokes("no-checkpoint")(lambda: trainer().train(resume_from_checkpoint=True))


@provokes("other-model")
def _() -> None:
    trainer(save_steps=1).train()

    class Other(Line):
        def __init__(self) -> None:
            super().__init__()
            self.bias = torch.nn.Parameter(torch.zeros(1))

    trainer(model=Other(), max_steps=2).train(resume_from_checkpoint=True)


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


class Scores(TrainerCallback):
    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        print(metrics["eval_accuracy"])


class Files(torch.utils.data.Dataset):
    """A dataset whose row 3 is of a missing file."""

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, row: int) -> dict[str, int]:
        if row == 3:
            raise FileNotFoundError("there is no row-3.png")
        return ROWS[row]


TOKENS = [{"input_ids": [3] * length, "labels": 1} for length in (1, 2)]


def sequential(rows: Any, **settings: Any) -> Trainer:
    return trainer(rows, train_sampling_strategy="sequential", **settings)


provokes("nonfinite-stopped")(lambda: sequential(NAN, stop_on_nan=True).train())


def _told() -> str:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("mps_trainer.loop.nonfinite")
    logger.addHandler(handler)
    sequential(NAN, max_steps=3, logging_steps=3).train()
    logger.removeHandler(handler)
    return records[0].getMessage()


PROVOCATIONS["nonfinite-told"] = _told


provokes("unreadable-row", explanation_of)(lambda: sequential(Files()).train())
provokes("odd-row", explanation_of)(lambda: sequential([*ROWS[:3], {"x": 3}], max_steps=1).train())
provokes("nothing-pads", explanation_of)(lambda: sequential(TOKENS, remove_unused_columns=False).train())


@provokes("failing-callback", explanation_of)
def _() -> None:
    run = trainer(eval_dataset=ROWS, eval_strategy="steps", eval_steps=1)
    run.add_callback(Scores)
    run.train()
