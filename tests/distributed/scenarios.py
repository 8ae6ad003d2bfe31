"""Runs that one process and several have to make alike. Each is made by every process, and gives what came of it."""

import contextlib
import functools
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from datasets import Dataset
from datasets.distributed import split_dataset_by_node
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from mps_trainer import Trainer, TrainingArguments
from mps_trainer.checkpoints.output_folder import only_run_in
from mps_trainer.distributed.sharded import full_state_dict
from mps_trainer.errors import NonFiniteLossError
from mps_trainer.launching.restarts import Progress, Restart, Supervision
from tests.conftest import Classifier, Stream, accuracy, callback, examples, logged, refusal
from tests.tiny import tiny

TOGETHER = int(os.environ.get("TOGETHER", "8"))  # examples in a batch of all processes
STEPS = 24  # a run has so many; most have four epochs

SCENARIOS: dict[str, Callable[[str], dict[str, Any]]] = {}
ALIKE: list[str] = []


def scenario(function: Callable[[str], dict[str, Any]]) -> Callable[[str], dict[str, Any]]:
    SCENARIOS[function.__name__] = function
    return function


def alike(function: Callable[[str], dict[str, Any]]) -> Callable[[str], dict[str, Any]]:
    """Registers a scenario in which several processes train as one does."""
    ALIKE.append(function.__name__)
    return scenario(function)


def processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def arguments(folder: str, **settings: Any) -> TrainingArguments:
    defaults = {
        "output_dir": folder,
        "use_cpu": os.environ.get("TRAINS_ON") != "mps",
        "ddp_backend": os.environ.get("DDP_BACKEND"),
        "disable_tqdm": True,
        "report_to": "none",
        "logging_steps": 1,
        "save_strategy": "no",
        "per_device_train_batch_size": TOGETHER // processes(),
        "learning_rate": 1e-2,
        "max_steps": STEPS,
    }
    return TrainingArguments(**{**defaults, **settings})


def outcome(trainer: Trainer, **more: Any) -> dict[str, Any]:
    return {
        "losses": logged(trainer, "loss"),
        "norms": logged(trainer, "grad_norm"),
        "epochs": logged(trainer, "epoch"),
        "evaluations": logged(trainer, "eval_loss"),
        "steps": trainer.state.global_step,
        "weights": full_state_dict(trainer.model),
        **more,
    }


def train(folder: str, model: nn.Module, rows: Any, collate: Any = None, kind: Any = Trainer, **settings: Any) -> Any:
    trainer = kind(model, arguments(folder, **settings), collate, rows)
    trainer.train()
    return outcome(trainer)


def classifier() -> Classifier:
    torch.manual_seed(0)
    return Classifier(dropout=0.0)


def run(folder: str, count: int, **settings: Any) -> dict[str, Any]:
    return train(folder, classifier(), examples(count), **settings)


RUNS: dict[str, tuple[int, dict[str, Any]]] = {
    "the_end_of_an_epoch_is_uneven": (43, {}),
    "the_end_of_an_epoch_is_one_example": (41, {}),
    "accumulation_and_clipping": (43, {"gradient_accumulation_steps": 3, "max_grad_norm": 0.05}),
}
for name, (count, settings) in RUNS.items():
    SCENARIOS[name] = functools.partial(run, count=count, **settings)
ALIKE += RUNS


@alike
def batches_are_split(folder: str) -> dict[str, Any]:
    return run(folder, 43, per_device_train_batch_size=TOGETHER, accelerator_config={"split_batches": processes() > 1})


class Silent(Trainer):
    """Returns the mean of its batch, and does not say so: what most subclasses do."""

    def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        outputs = model(**inputs)
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]


@alike
def a_loss_that_ignores_the_items(folder: str) -> dict[str, Any]:
    return train(folder, small_bert(), sentences(40, labels=True), padded, Silent, learning_rate=1e-3)


class Gathering(Trainer):
    """Divides by the items of all processes and gathers a number of each example, as trainers of TRL do."""

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = model(**inputs)
        targets = inputs["labels"][:, 1:].flatten()
        loss = nn.functional.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), targets, reduction="sum")
        items = targets.ne(-100).sum() if num_items_in_batch is None else num_items_in_batch / processes()
        self.gathered = self.accelerator.gather(inputs["attention_mask"].sum(1)).tolist()
        return (loss / items, outputs) if return_outputs else loss / items


@alike
def a_loss_that_gathers(folder: str) -> dict[str, Any]:
    """One process has no example of its own in the last update of an epoch, and no label in another."""
    rows = [{**row, "ignored": number % 17 < 3} for number, row in enumerate(sentences(41, False))]
    settings = {"gradient_accumulation_steps": 2, "learning_rate": 1e-3, "remove_unused_columns": False}
    size = TOGETHER // 4 // processes()
    return train(folder, small_gpt(), rows, ignoring, Gathering, per_device_train_batch_size=size, **settings)


@alike
def a_loss_that_gathers_after_a_restart_for_memory(folder: str) -> dict[str, Any]:
    """At the end of an epoch the first process has four examples and the second one."""
    restart = Restart(1, "was killed", Progress(os.path.abspath(folder)), examples=2)
    with mock.patch.dict(os.environ, Supervision("id", (restart,)).variables()):
        return train(folder, small_gpt(), sentences(45, labels=False), padded, Gathering, learning_rate=1e-3)


def sentences(count: int, labels: bool) -> list[dict[str, list[int]]]:
    """Of 3 to 30 tokens."""
    generator = np.random.default_rng(0)
    rows = []
    for _ in range(count):
        ids = generator.integers(5, 60, generator.integers(3, 31)).tolist()
        rows.append({"input_ids": ids, **({"labels": int(ids[1] > 30)} if labels else {})})
    return rows


def padded(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    longest = max(len(row["input_ids"]) for row in rows)
    ids = [row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows]
    mask = [[1] * len(row["input_ids"]) + [0] * (longest - len(row["input_ids"])) for row in rows]
    batch = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
    if "labels" in rows[0]:
        return {**batch, "labels": torch.tensor([row["labels"] for row in rows])}
    return {**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}


def ignoring(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """The batch, with nothing to learn from in the rows that are `ignored`."""
    batch = padded(rows)
    batch["labels"][torch.tensor([row["ignored"] for row in rows])] = -100
    return batch


def small_bert(kind: str = "BertForSequenceClassification", layers: int = 1) -> Any:
    return tiny(kind, num_hidden_layers=layers, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def small_gpt(dropout: float = 0.0, layers: int = 1) -> Any:
    """Returns a GPT-2, whose head is tied to its embedding."""
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    return tiny("GPT2LMHeadModel", num_hidden_layers=layers, **rates)


@alike
def length_buckets(folder: str) -> dict[str, Any]:
    settings = {"train_sampling_strategy": "bucket_by_length", "learning_rate": 1e-3}
    return train(folder, small_bert(), sentences(61, labels=True), padded, **settings)


@alike
def attention_in_chunks(folder: str) -> dict[str, Any]:
    return train(folder, small_gpt(), sentences(61, False), padded, chunked_attention=True, learning_rate=1e-3)


@scenario
def adapters_in_bfloat16(folder: str) -> dict[str, Any]:
    """LoRA under autocast."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    model = get_peft_model(small_gpt(), LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["c_attn"]))
    return train(folder, model, sentences(41, labels=False), padded, bf16=True, gradient_accumulation_steps=2)


@alike
def tokens_are_what_is_averaged_over(folder: str) -> dict[str, Any]:
    """Also at the end of an epoch, where one of two processes has another's example."""
    settings = {"gradient_accumulation_steps": 2, "learning_rate": 1e-3}
    return train(folder, small_gpt(), sentences(41, labels=False), padded, **settings)


@scenario
def evaluation(folder: str) -> dict[str, Any]:
    """Of every remainder, in batches of two."""
    trainer = Trainer(classifier(), arguments(folder, per_device_eval_batch_size=2), compute_metrics=accuracy)
    found = {}
    for count in range(1, 10):
        predictions, labels, metrics = trainer.predict(examples(count, seed=1))
        figures = {name: metrics[f"test_{name}"] for name in ("loss", "accuracy")}
        figures |= {"predictions": predictions, "labels": labels}
        found.update({f"{name} of {count}": figure for name, figure in figures.items()})
    return found


@scenario
def evaluation_sorted_by_length(folder: str, strategy: str = "bucket_by_length", **settings: Any) -> dict[str, Any]:
    args = arguments(folder, per_device_eval_batch_size=4, train_sampling_strategy=strategy, **settings)
    trainer = Trainer(small_bert(), args, data_collator=padded, compute_metrics=accuracy)
    predictions, labels, metrics = trainer.predict(sentences(29, labels=True))
    return {"predictions": predictions, "labels": labels, "loss": metrics["test_loss"]}


@scenario
def evaluation_of_seven_full_batches(folder: str) -> dict[str, Any]:
    return evaluation_sorted_by_length(folder, "group_by_length", dataloader_drop_last=True)


def with_checkpoints(folder: str, resume: str | None = None) -> dict[str, Any]:
    """A run with dropout, which evaluates and saves, and keeps the best of its checkpoints and the last."""
    torch.manual_seed(0)
    trainer = Trainer(
        Classifier(dropout=0.3),
        arguments(
            folder, max_steps=14, gradient_accumulation_steps=2, save_strategy="steps", save_steps=3,
            eval_strategy="steps", eval_steps=3, load_best_model_at_end=True, metric_for_best_model="accuracy",
        ),
        train_dataset=examples(43),
        eval_dataset=examples(15, seed=1),
        compute_metrics=accuracy,
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=resume)
    return outcome(trainer, best=trainer.state.best_model_checkpoint)


def files(folder: str) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


@scenario
def a_run_resumed_in_an_epoch(folder: str) -> dict[str, Any]:
    whole = with_checkpoints(os.path.join(folder, "whole"))
    again = with_checkpoints(os.path.join(folder, "whole"), resume=os.path.join(folder, "whole", "checkpoint-6"))
    return {"whole": whole, "again": again}


@scenario
def checkpoints(folder: str) -> dict[str, Any]:
    """Without dropout, which several processes draw differently."""
    came = run(folder, 43, max_steps=12, save_strategy="steps", save_steps=4, save_total_limit=2)
    return {**came, "files": files(folder), "folder": folder}


@scenario
def a_checkpoint_that_is_not_there(folder: str) -> dict[str, Any]:
    trainer = Trainer(Classifier(), arguments(folder), train_dataset=examples(40))
    return {"said": refusal(trainer.train, resume_from_checkpoint=os.path.join(folder, "checkpoint-99"))}


@scenario
def data_of_another_size(folder: str) -> dict[str, Any]:
    """As on machines of which one has an older copy of the data."""
    rank = int(os.environ.get("RANK", "0"))
    return {"said": refusal(Trainer(Classifier(), arguments(folder), train_dataset=examples(40 + rank)).train)}


@scenario
def folders_of_their_own(folder: str) -> dict[str, Any]:
    """As on machines that share none; a best checkpoint would be seen by the process that wrote it alone."""
    own = f"{folder}-{os.environ.get('RANK', 0)}"
    trainer = Trainer(
        Classifier(),
        arguments(own, load_best_model_at_end=True, eval_strategy="epoch", save_strategy="epoch", max_steps=2),
        train_dataset=examples(40),
        eval_dataset=examples(8),
    )
    return {"said": refusal(trainer.train), "left": os.listdir(own) if os.path.isdir(own) else []}


@scenario
def another_run_in_the_folder(folder: str) -> dict[str, Any]:
    os.makedirs(folder, exist_ok=True)
    trainer = Trainer(Classifier(), arguments(folder, max_steps=1), train_dataset=examples(40))
    with contextlib.ExitStack() as stack:
        if trainer.is_world_process_zero():
            stack.enter_context(only_run_in(folder))
        torch.distributed.barrier()
        return {"said": refusal(trainer.train)}


@alike
def a_stream(folder: str) -> dict[str, Any]:
    """The stream ends when every process has an example."""
    return train(folder, classifier(), Stream(examples(44)))


@alike
def an_update_without_a_label_in_one_process(folder: str) -> dict[str, Any]:
    """The first half of each batch, which is the first of two processes', has nothing to learn from."""
    rows = [{**row, "ignored": number % TOGETHER < TOGETHER // 2} for number, row in enumerate(sentences(48, False))]
    settings = {"train_sampling_strategy": "sequential", "learning_rate": 1e-3, "remove_unused_columns": False}
    return train(folder, small_gpt(), rows, ignoring, **settings)


class Drawing(Stream):
    """A stream, or a sampler, that draws its order from torch's global generator."""

    def __iter__(self) -> Any:
        return (self.rows[each] for each in torch.randperm(len(self.rows)).tolist())

    def __len__(self) -> int:
        return len(self.rows)


class Noting(Trainer):
    """Notes its examples, and draws other numbers in each process, as dropout does in batches of different shapes."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return Drawing(range(40))

    def training_step(self, model: nn.Module, inputs: Any, *items: Any) -> torch.Tensor:
        torch.rand(1 + self.args.process_index)
        vars(self).setdefault("seen", []).extend(inputs["x"][:, 0].tolist())
        return super().training_step(model, inputs, *items)


@scenario
def orders_that_are_drawn(folder: str) -> dict[str, Any]:
    """The examples of two epochs."""
    seen = {}
    stream = Dataset.from_list(examples(40)).to_iterable_dataset().with_format("torch")
    shuffled = stream.shuffle().map(lambda row: row)
    for name, rows in {"stream": Drawing(examples(40)), "sampler": examples(40), "shuffled": shuffled}.items():
        trainer = Noting(classifier(), arguments(folder, max_steps=10), train_dataset=rows)
        if trainer.is_world_process_zero():
            next(iter(trainer.get_train_dataloader()))  # a script may print a batch
        trainer.train()
        seen[name] = trainer.seen
    return seen


@scenario
def a_stream_split_by_node(folder: str) -> dict[str, Any]:
    stream = Dataset.from_list(examples(8)).to_iterable_dataset()
    stream = split_dataset_by_node(stream, int(os.environ.get("RANK", "0")), processes())
    return {"said": refusal(Trainer(Classifier(), arguments(folder), train_dataset=stream).train)}


@scenario
def a_loss_that_is_infinite_in_one_process(folder: str) -> dict[str, Any]:
    """Its gradients are finite."""
    model, more = classifier(), float("inf") if os.environ.get("RANK") == "1" else 0.0
    model.register_forward_hook(lambda module, given, outputs: {**outputs, "loss": outputs["loss"] + more})
    trainer = Trainer(model, arguments(folder, stop_on_nan=True), train_dataset=examples(40))
    return {"said": refusal(trainer.train, kind=NonFiniteLossError)}


@alike
def a_layer_that_is_released_halfway(folder: str) -> dict[str, Any]:
    model = classifier()
    optimizers, replicas = (torch.optim.SGD(model.parameters(), lr=0.1), None), list[Any]()
    model.hidden.requires_grad_(False)

    def change(state: Any, **_: Any) -> None:
        model.hidden.requires_grad_(state.global_step > 9)
        replicas.append(weakref.ref(trainer.model_wrapped))
        assert processes() == 1 or state.global_step != 11 or replicas[0]() is None  # it has memory for gradients

    settings = {"callbacks": [callback(on_step_end=change)], "optimizers": optimizers}
    trainer = Trainer(model, arguments(folder), None, examples(43), **settings)
    trainer.train()
    return outcome(trainer)


@scenario
def evaluation_of_a_stream(folder: str) -> dict[str, Any]:
    args = arguments(folder, per_device_eval_batch_size=2)
    trainer = Trainer(classifier(), args, compute_metrics=accuracy)
    predictions, labels, metrics = trainer.predict(Stream(examples(9, seed=1)))
    return {"predictions": predictions, "labels": labels, "loss": metrics["test_loss"]}


class Dividing(Trainer):
    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        shares = DistributedSampler(eval_dataset, self.args.world_size, self.args.process_index, shuffle=False)
        return DataLoader(eval_dataset, 2, sampler=shares)


@scenario
def evaluation_by_a_loader_that_divides(folder: str) -> dict[str, Any]:
    trainer = Dividing(classifier(), arguments(folder), compute_metrics=accuracy)
    return {"accuracy": trainer.evaluate(examples(10, seed=1))["eval_accuracy"]}


@scenario
def steps_of_an_evaluation(folder: str) -> dict[str, Any]:
    args = arguments(folder, per_device_eval_batch_size=TOGETHER // processes())
    metrics = Trainer(classifier(), args).evaluate(examples(20, seed=1))
    return {"steps": round(metrics["eval_steps_per_second"] * metrics["eval_runtime"])}


@scenario
def metrics_batch_by_batch(folder: str) -> dict[str, Any]:
    seen: list[Any] = []

    def metric(prediction: Any, compute_result: bool = False) -> dict[str, float]:
        seen.append(prediction.inputs["labels"].tolist())
        return {"batches": float(len(seen)), "labels": float(sum(map(len, seen)))} if compute_result else {}

    settings = {"batch_eval_metrics": True, "include_for_metrics": ["inputs"]}
    args = arguments(folder, per_device_eval_batch_size=2, **settings)
    trainer = Trainer(classifier(), args, compute_metrics=metric)
    metrics = trainer.evaluate(examples(9, seed=1))
    return {name: metrics[name] for name in ("eval_batches", "eval_labels", "eval_loss")}


@scenario
def from_two_processes(folder: str) -> dict[str, Any]:
    """A run that goes on from a checkpoint of two; not there where nobody has made one."""
    checkpoint = os.environ.get("FROM_CHECKPOINT")
    if checkpoint is None:
        return {}
    trainer = Trainer(classifier(), arguments(folder, max_steps=12), train_dataset=examples(43))
    trainer.train(resume_from_checkpoint=checkpoint)
    return outcome(trainer)
