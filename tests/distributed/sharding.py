"""Runs of a sharded model, which one process has to make alike with a whole one."""

import errno
import os
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

from mps_trainer import NonFiniteLossError, Trainer
from mps_trainer.checkpoints import checkpoints
from mps_trainer.distributed.sharded import is_sharded, local
from mps_trainer.reports.run_facts import model_of
from tests.conftest import Classifier, Stream, accuracy, callback, examples, logged
from tests.distributed.messages import raised
from tests.distributed.scenarios import (
    arguments,
    files,
    ignoring,
    outcome,
    padded,
    processes,
    scenario,
    sentences,
    small_bert,
    small_gpt,
)
from tests.tiny import tiny

FULL, SHARDED = "FULL_STATE_DICT", "SHARDED_STATE_DICT"


def spread(folder: str, config: dict[str, Any] | None = None, **settings: Any) -> Any:
    """Arguments of a run that is sharded where there are several processes."""
    sharding = {"fsdp": True, "fsdp_config": config or {}} if processes() > 1 else {}
    return arguments(folder, **{"learning_rate": 1e-3, **sharding, **settings})


def make(
    folder: str, config: Any = None, model: Any = None, rows: Any = None, collate: Any = padded, **given: Any
) -> Any:
    """Returns a Trainer of a small language model on sentences; `given` are its arguments and theirs."""
    own = {name: given.pop(name) for name in ("callbacks", "eval_dataset") if name in given}
    rows = sentences(41, labels=False) if rows is None else rows
    return Trainer(
        small_gpt(layers=2) if model is None else model, spread(folder, config, **given), collate, rows, **own
    )


def trained(folder: str, *given: Any, resume: str | None = None, **settings: Any) -> Any:
    """Returns a Trainer, made as by `make`, that has trained."""
    trainer = make(folder, *given, **settings)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def blocks_of(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if is_sharded(module)]


def held(trainer: Trainer) -> tuple[int, int]:
    """Bytes of parameters and optimizer that this process has, and that there are."""
    own = whole = 0
    for parameter in trainer.model.parameters():
        for tensor in (parameter, *trainer.optimizer.state[parameter].values()):
            own += local(tensor).nbytes
            whole += tensor.numel() * tensor.element_size()
    return own, whole


@scenario
def sharded_tokens(folder: str) -> dict[str, Any]:
    """A loss over tokens, accumulated, clipped, with an uneven end of the epoch, evaluated on a number that is odd."""
    apart = []

    def note(model: nn.Module, **_: Any) -> None:
        apart.append(all(parameter.grad is None for parameter in model.parameters()))

    trainer = trained(
        folder, gradient_accumulation_steps=2, max_grad_norm=0.5, eval_strategy="steps", eval_steps=20,
        per_device_eval_batch_size=2, eval_dataset=sentences(9, labels=False),
        callbacks=[callback(on_substep_end=note)],
    )  # fmt: skip
    after = trainer.evaluate()["eval_loss"]
    own, whole = held(trainer)
    trainer.save_model()
    blocks = blocks_of(trainer.model)
    return outcome(trainer, own=own, whole=whole, blocks=blocks, after=after, folder=folder, apart=set(apart))


@scenario
def sharded_without_a_label_in_one_process(folder: str) -> dict[str, Any]:
    """With accumulation: a process has batches with nothing to learn in any place of an update."""
    rows = [{**row, "ignored": number % 16 < 8 or number % 8 < 4} for number, row in enumerate(sentences(45, False))]
    settings = {"train_sampling_strategy": "sequential", "remove_unused_columns": False}
    return outcome(trained(folder, rows=rows, collate=ignoring, gradient_accumulation_steps=3, **settings))


@scenario
def sharded_and_computed_again(folder: str) -> dict[str, Any]:
    """BERT for masked words, whose head is tied to the embeddings; activations are computed again."""
    config = {"activation_checkpointing": True, "reshard_after_forward": False}
    return outcome(trained(folder, config, small_bert("BertForMaskedLM", layers=2)))


@scenario
def sharded_with_a_cache_and_computed_again(folder: str) -> dict[str, Any]:
    """T5, whose decoder makes a cache in training."""
    return outcome(trained(folder, {"activation_checkpointing": True}, tiny("T5ForConditionalGeneration")))


@scenario
def sharded_by_size(folder: str) -> dict[str, Any]:
    """A module that is not of transformers, one layer of which is not trained; a stream and a filler at the end."""
    torch.manual_seed(int(os.environ.get("RANK", "0")))  # the first one's weights are those of all
    model = Classifier(dropout=0.0)
    model.hidden.requires_grad_(False)
    trainer = Trainer(
        model,
        spread(
            folder, {"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 30}, learning_rate=1e-2,
            max_grad_norm=0.0, per_device_eval_batch_size=2, optim="sgd",
        ),
        train_dataset=examples(41),
        compute_metrics=accuracy,
    )  # fmt: skip
    trainer.train()
    streams = [trainer.predict(Stream(examples(count, seed=1))) for count in (1, 9, 12)]
    found = [(each.predictions, each.label_ids, each.metrics["test_loss"]) for each in streams]
    return outcome(trainer, found=found)


@scenario
def sharded_and_described(folder: str) -> dict[str, Any]:
    trainer = trained(folder, model=small_bert(), rows=sentences(16, labels=True), max_steps=1)
    trainer.create_model_card()
    torch.distributed.barrier()
    with open(os.path.join(folder, "README.md"), encoding="utf-8") as file:
        return {"card": file.read(), "model": model_of(trainer.model, trainer.args)}


class Overflows(Classifier):
    """For a batch that begins with 0 its activations are no numbers, and neither would its gradients be."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        return super().forward(torch.where(x[0, 0] == 0, torch.inf, 1.0) * x, labels)


@scenario
def sharded_with_infinite_activations_of_what_does_not_count(folder: str) -> dict[str, Any]:
    """The first half of each batch, the first process's, has no label; the same with activations that are finite."""
    made = {}
    for name, begins in (("infinite", 0.0), ("finite", 1.0)):
        rows = examples(24)
        for number, row in enumerate(rows):
            if number % 8 < 4:
                row.update(x=torch.full((4,), begins), labels=-100)
        torch.manual_seed(0)
        args = spread(os.path.join(folder, name), {"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 30})
        args.max_steps, args.train_sampling_strategy = 3, "sequential"
        trainer = Trainer(Overflows(dropout=0.0), args, train_dataset=rows)
        trainer.train()
        made[name] = outcome(trainer)
    return made


@scenario
def sharded_in_bfloat16(folder: str) -> dict[str, Any]:
    seen = []

    def look(model: nn.Module, **_: Any) -> None:
        block = next(module for module in model.modules() if type(module).__name__.endswith("GPT2Block"))
        block.mlp.register_forward_hook(lambda module, given, out: seen.append(module.c_fc.weight.dtype))

    trainer = trained(folder, bf16=True, max_steps=30, learning_rate=1e-2, callbacks=[callback(on_train_begin=look)])
    kept = {parameter.dtype for parameter in trainer.model.parameters()}
    return outcome(trainer, used=set(seen), kept=kept)


def saved(folder: str, kind: str, resume: Any = None, **settings: Any) -> dict[str, Any]:
    """A run with dropout that evaluates, saves, and goes back to its best weights."""
    trainer = trained(
        folder, {"state_dict_type": kind}, small_gpt(dropout=0.1, layers=2), sentences(43, labels=False),
        resume=resume, eval_dataset=sentences(7, labels=False),
        **{
            "max_steps": 8, "gradient_accumulation_steps": 2, "save_strategy": "steps", "save_steps": 2,
            "eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True, "save_total_limit": 3,
            "learning_rate": 1e-2, "max_grad_norm": 0.5, **settings,
        },
    )  # fmt: skip
    return outcome(trainer, best=trainer.state.best_model_checkpoint)


@scenario
def sharded_run_resumed(folder: str) -> dict[str, Any]:
    """In an epoch, from either kind of checkpoint, beside one that was left alone."""
    made = {}
    for kind in (FULL, SHARDED):
        place = os.path.join(folder, kind)
        whole = saved(place, kind, save_total_limit=None)
        made[kind] = whole, saved(place, kind, resume=os.path.join(place, "checkpoint-4"), save_total_limit=None)
    return made


def continued(folder: str, kind: str = FULL, **given: Any) -> dict[str, Any]:
    """Without dropout, which several processes draw differently."""
    rows = sentences(43, labels=False)
    return outcome(trained(folder, {"state_dict_type": kind}, rows=rows, max_steps=12, max_grad_norm=0.5, **given))


@scenario
def sharded_checkpoints(folder: str) -> dict[str, Any]:
    made: dict[str, Any] = {"folder": folder}
    for kind in (FULL, SHARDED):
        place = os.path.join(folder, kind)
        came = continued(place, kind, save_strategy="steps", save_steps=4, save_total_limit=2)
        made[kind] = {**came, "files": files(place)}
    place = os.path.join(folder, "weights")
    continued(place, SHARDED, save_strategy="steps", save_steps=6, save_only_model=True)
    made["weights"] = {"files": files(place)}
    return made


@scenario
def sharded_from_one_process(folder: str) -> dict[str, Any]:
    """Both processes resume sharded from a checkpoint of a whole model."""
    whole = continued(folder, save_strategy="steps", save_steps=4, fsdp=None)
    return {"whole": whole, "again": continued(folder, resume=os.path.join(folder, "checkpoint-8"))}


@scenario
def sharded_from_two_processes(folder: str) -> dict[str, Any]:
    """Resumes from checkpoints of two processes; {} if there are none."""
    place = os.environ.get("FROM_SHARDS")
    if place is None:
        return {}
    return {
        kind: continued(os.path.join(folder, kind), kind, resume=os.path.join(place, kind, "checkpoint-8"))
        for kind in (FULL, SHARDED)
    }


@scenario
def sharded_where_the_second_cannot_write(folder: str) -> dict[str, Any]:
    """In the checkpoint of the fourth step: its disk is full; in another run, the program has a fault there."""
    import torch.distributed.checkpoint as dcp

    write = dcp.HuggingFaceStorageWriter.write_data

    def run_with(error: Exception, place: str) -> dict[str, Any]:
        calls: list[Any] = []

        def fails_once(writer: Any, plan: Any, planner: Any) -> Any:
            calls.append(plan)
            if len(calls) == 2 and os.environ.get("RANK") == "1":
                raise error
            return write(writer, plan, planner)

        settings = {"max_steps": 6, "load_best_model_at_end": False, "save_only_model": True}
        fails = mock.patch.object(dcp.HuggingFaceStorageWriter, "write_data", fails_once)
        with fails, mock.patch.object(checkpoints.logger, "error") as told:
            ended = raised(lambda: saved(place, SHARDED, **settings))
        return {"raised": ended, "told": told.call_count, "files": sorted(os.listdir(place))}

    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return {
        "full disk": run_with(full, os.path.join(folder, "full")),
        "fault": run_with(KeyError("loss"), os.path.join(folder, "fault")),
    }


@scenario
def sharded_until_it_is_no_number(folder: str) -> dict[str, Any]:
    def break_head(state: Any, model: Any, **_: Any) -> None:
        if state.global_step == 3:
            model.lm_head.register_forward_hook(lambda module, given, out: out * float("nan"))

    trainer = make(folder, stop_on_nan=True, max_steps=6, callbacks=[callback(on_step_begin=break_head)])
    try:
        trainer.train()
    except NonFiniteLossError as error:
        return {"step": error.step, "files": sorted(os.listdir(folder))}
    return {"step": None}


@scenario
def sharded_optimizers(folder: str) -> dict[str, Any]:
    made = {}
    for optim in ("adamw_torch", "sgd", "adagrad", "rmsprop"):
        place, rows = os.path.join(folder, optim), sentences(24, labels=True)
        settings = {"rows": rows, "max_steps": 4, "optim": optim, "save_strategy": "steps", "save_steps": 2}
        first = trained(place, model=small_bert(), **settings)
        again = trained(place, model=small_bert(), resume=os.path.join(place, "checkpoint-2"), **settings)
        made[optim] = {"losses": np.array(logged(first, "loss")), "again": np.array(logged(again, "loss"))}
    return made
