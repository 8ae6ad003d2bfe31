"""Batches, their order and the random numbers drawn for them are those of transformers' Trainer, side by side."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import datasets
import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import mps_trainer
from tests.conftest import assert_same_weights, weights
from tests.dropin.conftest import Library

SIZE, BATCH = 22, 4  # six batches an epoch, the last of two examples
STEPS, STOP = 18, 8  # three epochs, and a checkpoint after two batches of the second


def rows(count: int = SIZE) -> list[dict]:
    """Returns examples of several lengths. Their first token is their index."""
    return [{"input_ids": [i, *range(1, 2 + i * 7 % 5)], "labels": i % 2} for i in range(count)]


def pad(items: list[dict]) -> dict[str, torch.Tensor]:
    length = max(len(item["input_ids"]) for item in items)
    ids = [[*map(int, item["input_ids"]), *[0] * (length - len(item["input_ids"]))] for item in items]
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor([int(item["labels"]) for item in items])}


def mask(items: list[dict]) -> dict[str, torch.Tensor]:
    """Draws from torch's generator, as the collator of a masked language model does."""
    batch = pad(items)
    hidden = torch.rand(batch["input_ids"].shape) < 0.3
    hidden[:, 0] = False
    batch["input_ids"][hidden] = 40
    return batch


def mask_with_python(items: list[dict]) -> dict[str, torch.Tensor]:
    """Draws from the generators that a loading process has only if it was seeded."""
    batch = pad(items)
    batch["input_ids"][:, 1] = random.randrange(20, 60) + int(np.random.randint(20, 60))
    return batch


class Bag(nn.Module):
    """A classifier with dropout that notes which examples it was given in training."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.dropout, self.head = nn.Embedding(128, 8), nn.Dropout(0.3), nn.Linear(8, 2)
        self.seen: list[list[int]] = []

    def forward(self, input_ids, labels=None):
        if self.training:
            self.seen.append(input_ids[:, 0].tolist())
        logits = self.head(self.dropout(self.embed(input_ids)).mean(1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Stream(IterableDataset):
    """Shuffles itself with the epoch it was told."""

    def __init__(self, count: int = SIZE) -> None:
        self.count, self.epoch = count, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        yield from (rows(self.count)[i] for i in order)


class DrawnStream(Stream):
    """Shuffles itself with torch's own generator."""

    def __iter__(self):
        yield from (rows(self.count)[i] for i in torch.randperm(self.count).tolist())


class EndlessStream(Stream):
    """Gives more than its length says, so that the run ends its epochs."""

    def __len__(self) -> int:
        return self.count

    def __iter__(self):
        while True:
            yield from super().__iter__()


class Noisy(torch.utils.data.Dataset):
    """Changes its examples at random, each time they are asked for, and with the epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, i: int) -> dict:
        if i >= SIZE:
            raise IndexError(i)
        row = rows()[i]
        return {**row, "input_ids": [i, 30 + self.epoch, int(torch.randint(20, 30, ()))]}


class Batches(BatchSampler):
    """Yields other batches in each epoch that it is told of."""

    def __init__(self) -> None:
        self.epoch, self.batch_size, self.drop_last = 0, BATCH, False

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 6

    def __iter__(self):
        for i in range(6):
            yield [(i + self.epoch) % SIZE, (3 * i + 1) % SIZE]


def sampled_by(make) -> type:
    return type("Sampled", (), {"_get_train_sampler": lambda self, train_dataset=None: make(self.train_dataset)})


class Before5:
    """Overrides the sampler as subclasses for transformers before 5 do."""

    def _get_train_sampler(self, *args):
        return RandomSampler(self.train_dataset, replacement=True, num_samples=SIZE)


def loaded_by(is_prepared: bool = False, dataset=rows, collator=pad, **settings) -> type:
    """Returns a class whose train loader is a DataLoader with `settings`, prepared by the accelerator if asked."""

    class Loaded:
        def get_train_dataloader(self):
            loader = DataLoader(dataset(), collate_fn=collator, **settings)
            return self.accelerator.prepare(loader) if is_prepared else loader

    return Loaded


def table() -> datasets.Dataset:
    whole = rows()
    columns = {name: [row[name] for row in whole] for name in ("input_ids", "labels")}
    return datasets.Dataset.from_dict({"idx": list(range(SIZE)), **columns})


def streamed() -> datasets.IterableDataset:
    return table().to_iterable_dataset(num_shards=2).shuffle(seed=3, buffer_size=7)


@dataclass(frozen=True)
class Case:
    """A run: its settings, dataset and collator, and the class with the overrides of its Trainer."""

    settings: dict = field(default_factory=dict)
    dataset: Callable = rows
    collator: Callable = pad
    override: type | None = None


BY_LENGTH = {"train_sampling_strategy": "group_by_length"}
BY_COLUMN = {**BY_LENGTH, "length_column_name": "idx", "remove_unused_columns": False}
ACCUMULATION = {"gradient_accumulation_steps": 2, "num_train_epochs": 6, "dataloader_drop_last": True}
WORKERS = {"dataloader_num_workers": 2}
FINITE = {"max_steps": STEPS}  # for streams
SEEDED = {"shuffle": True, "batch_size": BATCH}


def loading(**settings) -> dict:
    return {"accelerator_config": settings}


CASES = {
    "default": Case(),
    "data_seed": Case({"data_seed": 11}),
    "drop_last": Case({"dataloader_drop_last": True, "num_train_epochs": 4}),
    "accumulation": Case(ACCUMULATION, collator=mask),
    "sequential": Case({"train_sampling_strategy": "sequential"}),
    "group_by_length": Case(BY_LENGTH),
    "group_by_length_table": Case(BY_LENGTH, table),
    "group_by_length_column": Case(BY_COLUMN, table),
    "group_by_length_torch": Case(BY_COLUMN, lambda: table().with_format("torch")),
    "batch_rebalance": Case({"train_sampling_strategy": "batch_rebalance"}),
    "not_seedable": Case(loading(use_seedable_sampler=False)),
    "split_batches": Case(loading(split_batches=True)),
    "dispatched": Case(loading(dispatch_batches=True)),
    "dispatched_stream": Case({**loading(dispatch_batches=True), **FINITE}, Stream),
    "undispatched_stream": Case({**loading(dispatch_batches=False), **FINITE}, Stream),
    "uneven": Case(loading(even_batches=False)),
    "workers": Case(WORKERS, collator=mask),
    "worker_seeds": Case(WORKERS, collator=mask_with_python),
    "persistent": Case({**WORKERS, "dataloader_persistent_workers": True}, Noisy),
    "masks": Case(collator=mask),
    "noisy": Case(dataset=Noisy, collator=mask),
    "stream": Case(FINITE, Stream),
    "endless_stream": Case(dataset=EndlessStream),
    "drawn_stream": Case(FINITE, DrawnStream, mask),
    "long_stream": Case(FINITE, lambda: DrawnStream(100), mask),
    "stream_drop_last": Case({**FINITE, "dataloader_drop_last": True}, Stream),
    "streamed_table": Case(FINITE, streamed),
    "streamed_torch": Case(FINITE, lambda: streamed().with_format("torch")),
    "streamed_workers": Case({**FINITE, **WORKERS}, streamed, mask),
    "table": Case(dataset=table),
    "table_torch": Case(dataset=lambda: table().with_format("torch"), collator=mask),
    "random": Case(override=sampled_by(RandomSampler)),
    "random_generator": Case(
        override=sampled_by(lambda data: RandomSampler(data, generator=torch.Generator().manual_seed(5)))
    ),
    "replacement": Case(collator=mask, override=Before5),
    "in_order": Case(override=sampled_by(SequentialSampler)),
    "weighted": Case(override=sampled_by(lambda data: WeightedRandomSampler(range(1, SIZE + 1), SIZE))),
    "subset": Case(collator=mask, override=sampled_by(lambda data: SubsetRandomSampler(range(SIZE)))),
    "own_loader": Case(override=loaded_by(**SEEDED)),
    "own_loader_masks": Case(override=loaded_by(collator=mask, **SEEDED)),
    "own_batches": Case(override=loaded_by(batch_sampler=Batches())),
    "own_stream": Case(FINITE, override=loaded_by(dataset=Stream, batch_size=BATCH)),
    "prepared": Case(override=loaded_by(is_prepared=True, **SEEDED)),
    "prepared_not_seedable": Case(loading(use_seedable_sampler=False), override=loaded_by(is_prepared=True, **SEEDED)),
    "prepared_batches": Case(override=loaded_by(is_prepared=True, batch_sampler=Batches())),
    "prepared_sampled": Case(
        override=loaded_by(is_prepared=True, batch_sampler=BatchSampler(RandomSampler(rows()), BATCH, True))
    ),
}


# Accelerate 1.15 does not tell the rest of a resumed epoch which epoch it is: order or dataset are then those of the
# first one. This package tells it.
EPOCH_LOST_UNDER_TRANSFORMERS = {"dispatched", "noisy", "persistent"}
# Persistent workers draw on from epoch to epoch under transformers, and a resumed run cannot get there. This package
# seeds them in each epoch.
DRAWS_ON_UNDER_TRANSFORMERS = {"persistent"}


def make(package, name, folder, **more):
    case = CASES[name]
    steps = {"per_device_train_batch_size": BATCH, "save_steps": STOP, "save_strategy": "steps", "learning_rate": 0.05}
    given = {"data_collator": case.collator, "train_dataset": case.dataset(), "eval_dataset": None}
    torch.manual_seed(0)
    kind = None if case.override is None else type("Subclass", (case.override, package.Trainer), {})
    return Library(package, folder).trainer(Bag(), kind=kind, **{**given, **steps, **case.settings, **more})


def outcome(trainer, resume=None):
    """Trains. Returns the examples in their order, the losses, and the next number of torch's generator."""
    trainer.train(resume_from_checkpoint=resume)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"seen": trainer.model.seen, "losses": losses, "next draw": torch.rand(1).item()}


def assert_same_outcome(ours, theirs):
    assert ours == {**theirs, "losses": pytest.approx(theirs["losses"], abs=1e-6)}


@pytest.mark.parametrize("name", sorted(CASES.keys() - DRAWS_ON_UNDER_TRANSFORMERS))
def test_run_sees_examples_of_transformers(tmp_path, name):
    theirs = outcome(make(transformers, name, tmp_path / "theirs"))
    ours = outcome(make(mps_trainer, name, tmp_path / "ours"))
    assert len(ours["seen"]) >= 15
    assert_same_outcome(ours, theirs)


@pytest.mark.parametrize("name", sorted(CASES.keys() - EPOCH_LOST_UNDER_TRANSFORMERS))
def test_resumed_run_sees_examples_of_transformers(tmp_path, name):
    make(transformers, name, tmp_path / "first", save_strategy="steps").train()
    checkpoint = str(tmp_path / "first" / f"checkpoint-{STOP}")
    theirs = outcome(make(transformers, name, tmp_path / "theirs", save_strategy="no"), checkpoint)
    ours = outcome(make(mps_trainer, name, tmp_path / "ours", save_strategy="no"), checkpoint)
    assert_same_outcome(ours, theirs)


@pytest.mark.parametrize("name", CASES)
def test_resumed_run_equals_uninterrupted_run(tmp_path, name):
    whole = make(mps_trainer, name, tmp_path / "whole", save_strategy="steps")
    whole.train()
    resumed = make(mps_trainer, name, tmp_path / "resumed", save_strategy="no")
    torch.manual_seed(99)  # whatever happened before
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{STOP}"))
    assert resumed.model.seen == whole.model.seen[-len(resumed.model.seen) :]
    assert_same_weights(weights(whole.model), weights(resumed.model))
