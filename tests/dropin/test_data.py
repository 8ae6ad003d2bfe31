"""Batches, their order and the random numbers drawn for them are those of transformers' Trainer, side by side."""

from __future__ import annotations

import random

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
from transformers.trainer_pt_utils import AcceleratorConfig

import mps_trainer
from tests.conftest import assert_same_weights, weights

SIZE, BATCH = 22, 4  # six batches an epoch, the last of two examples
STEPS, STOP = 18, 8  # three epochs, and a checkpoint after two batches of the second


def rows(count: int = SIZE) -> list[dict]:
    """Examples of several lengths, whose first token is their index."""
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
    """Shuffles itself with what torch's own generator gives."""

    def __iter__(self):
        yield from (rows(self.count)[i] for i in torch.randperm(self.count).tolist())


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


class Plain:
    """Overrides nothing."""


class Batches(BatchSampler):
    """Batches of a user's own, different in each epoch it is told of."""

    def __init__(self, sampler=None) -> None:
        self.epoch, self.batch_size, self.drop_last = 0, BATCH, False
        if sampler is not None:
            self.sampler = sampler

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 6

    def __iter__(self):
        for i in range(6):
            yield [(i + self.epoch) % SIZE, (3 * i + 1) % SIZE]


def sampled_by(make):
    class Sampled:
        def _get_train_sampler(self, train_dataset=None):
            return make(self.train_dataset)

    return Sampled


class Before5:
    """As subclasses for transformers before 5 write it."""

    def _get_train_sampler(self, *args):
        return RandomSampler(self.train_dataset, replacement=True, num_samples=SIZE)


def loaded_by(make):
    class Loaded:
        def get_train_dataloader(self):
            return make(self)

    return Loaded


def prepared(trainer, loader):
    """Does what a subclass has the accelerator do."""
    return trainer.accelerator.prepare(loader)


def own(**settings):
    return lambda trainer: DataLoader(rows(), collate_fn=pad, **settings)


def table() -> datasets.Dataset:
    whole = rows()
    return datasets.Dataset.from_dict(
        {
            "idx": list(range(SIZE)),
            "input_ids": [row["input_ids"] for row in whole],
            "labels": [row["labels"] for row in whole],
        }
    )


def streamed() -> datasets.IterableDataset:
    return table().to_iterable_dataset(num_shards=2).shuffle(seed=3, buffer_size=7)


# name: settings, dataset, collator, what the subclass overrides
CASES = {
    "default": ({}, rows, pad, Plain),
    "data_seed": ({"data_seed": 11}, rows, pad, Plain),
    "drop_last": ({"dataloader_drop_last": True, "num_train_epochs": 4}, rows, pad, Plain),
    "accumulation": (
        {"gradient_accumulation_steps": 2, "num_train_epochs": 6, "dataloader_drop_last": True},
        rows,
        mask,
        Plain,
    ),
    "sequential": ({"train_sampling_strategy": "sequential"}, rows, pad, Plain),
    "group_by_length": ({"train_sampling_strategy": "group_by_length"}, rows, pad, Plain),
    "group_by_length_table": ({"train_sampling_strategy": "group_by_length"}, table, pad, Plain),
    "group_by_length_column": (
        {"train_sampling_strategy": "group_by_length", "length_column_name": "idx", "remove_unused_columns": False},
        table,
        pad,
        Plain,
    ),
    "batch_rebalance": ({"train_sampling_strategy": "batch_rebalance"}, rows, pad, Plain),
    "not_seedable": ({"accelerator_config": {"use_seedable_sampler": False}}, rows, pad, Plain),
    "split_batches": ({"accelerator_config": {"split_batches": True}}, rows, pad, Plain),
    "dispatched": ({"accelerator_config": {"dispatch_batches": True}}, rows, pad, Plain),
    "dispatched_stream": ({"accelerator_config": {"dispatch_batches": True}, "max_steps": 18}, Stream, pad, Plain),
    "undispatched_stream": ({"accelerator_config": {"dispatch_batches": False}, "max_steps": 18}, Stream, pad, Plain),
    "uneven": ({"accelerator_config": {"even_batches": False}}, rows, pad, Plain),
    "workers": ({"dataloader_num_workers": 2}, rows, mask, Plain),
    "worker_seeds": ({"dataloader_num_workers": 2}, rows, mask_with_python, Plain),
    "persistent": ({"dataloader_num_workers": 2, "dataloader_persistent_workers": True}, Noisy, pad, Plain),
    "masks": ({}, rows, mask, Plain),
    "noisy": ({}, Noisy, mask, Plain),
    "stream": ({"max_steps": 18}, Stream, pad, Plain),
    "drawn_stream": ({"max_steps": 18}, DrawnStream, mask, Plain),
    "long_stream": ({"max_steps": 18}, lambda: DrawnStream(100), mask, Plain),
    "stream_drop_last": ({"max_steps": 18, "dataloader_drop_last": True}, Stream, pad, Plain),
    "streamed_table": ({"max_steps": 18}, streamed, pad, Plain),
    "streamed_torch": ({"max_steps": 18}, lambda: streamed().with_format("torch"), pad, Plain),
    "streamed_workers": ({"max_steps": 18, "dataloader_num_workers": 2}, streamed, mask, Plain),
    "table": ({}, table, pad, Plain),
    "table_torch": ({}, lambda: table().with_format("torch"), mask, Plain),
    "random": ({}, rows, pad, sampled_by(RandomSampler)),
    "random_generator": (
        {},
        rows,
        pad,
        sampled_by(lambda data: RandomSampler(data, generator=torch.Generator().manual_seed(5))),
    ),
    "replacement": ({}, rows, mask, Before5),
    "in_order": ({}, rows, pad, sampled_by(SequentialSampler)),
    "weighted": ({}, rows, pad, sampled_by(lambda data: WeightedRandomSampler(range(1, SIZE + 1), SIZE))),
    "subset": ({}, rows, mask, sampled_by(lambda data: SubsetRandomSampler(range(SIZE)))),
    "own_loader": ({}, rows, pad, loaded_by(own(batch_size=BATCH, shuffle=True))),
    "own_loader_masks": ({}, rows, pad, loaded_by(lambda trainer: DataLoader(rows(), BATCH, True, collate_fn=mask))),
    "own_batches": ({}, rows, pad, loaded_by(own(batch_sampler=Batches()))),
    "own_stream": ({"max_steps": 18}, rows, pad, loaded_by(lambda trainer: DataLoader(Stream(), 4, collate_fn=pad))),
    "prepared": ({}, rows, pad, loaded_by(lambda trainer: prepared(trainer, own(batch_size=BATCH, shuffle=True)(0)))),
    "prepared_batches": ({}, rows, pad, loaded_by(lambda trainer: prepared(trainer, own(batch_sampler=Batches())(0)))),
    "prepared_sampled": (
        {},
        rows,
        pad,
        loaded_by(lambda t: prepared(t, own(batch_sampler=BatchSampler(RandomSampler(rows()), 4, True))(0))),
    ),
}


# Where Accelerate 1.15 does not tell the rest of a resumed epoch which epoch it is: the order, or the dataset, is then
# that of epoch 0. Here it goes on as it was.
EPOCH_LOST_UNDER_TRANSFORMERS = {"dispatched", "noisy", "persistent"}


# Workers that persist draw on from epoch to epoch under transformers, and only the run from its beginning would bring
# theirs there again. Here they are seeded in each epoch, and a resumed run goes on as if it had not been interrupted.
DRAWS_ON_UNDER_TRANSFORMERS = {"persistent"}


def make(package, name, folder, **more):
    settings, dataset, collator, override = CASES[name]
    settings = {**settings, **more}
    # Set afterwards, so that each package takes them as its own arguments would have them.
    later = {key: settings.pop(key) for key in ("train_sampling_strategy", "accelerator_config") if key in settings}
    args = package.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=BATCH,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        logging_steps=1,
        save_steps=STOP,
        learning_rate=0.05,
        **settings,
    )
    args.accelerator_config = AcceleratorConfig(**later.pop("accelerator_config", {}))
    for key, value in later.items():
        setattr(args, key, value)
    torch.manual_seed(0)
    kind = type("Subclass", (override, package.Trainer), {})
    return kind(Bag(), args, collator, train_dataset=dataset())


def outcome(trainer, resume=None):
    """Trains, and returns the examples in their order, the losses, and the next number of torch's generator."""
    trainer.train(resume_from_checkpoint=resume)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"seen": trainer.model.seen, "losses": losses, "next draw": torch.rand(1).item()}


@pytest.mark.parametrize("name", sorted(CASES.keys() - DRAWS_ON_UNDER_TRANSFORMERS))
def test_run_sees_what_it_sees_under_transformers(tmp_path, name):
    theirs = outcome(make(transformers, name, tmp_path / "theirs"))
    ours = outcome(make(mps_trainer, name, tmp_path / "ours"))
    assert len(ours["seen"]) >= 15
    assert ours["seen"] == theirs["seen"]
    assert ours["losses"] == pytest.approx(theirs["losses"], abs=1e-6)
    assert ours["next draw"] == theirs["next draw"]


@pytest.mark.parametrize("name", sorted(CASES.keys() - EPOCH_LOST_UNDER_TRANSFORMERS))
def test_resumed_run_sees_what_it_sees_under_transformers(tmp_path, name):
    make(transformers, name, tmp_path / "first", save_strategy="steps").train()
    checkpoint = str(tmp_path / "first" / f"checkpoint-{STOP}")
    theirs = outcome(make(transformers, name, tmp_path / "theirs", save_strategy="no"), checkpoint)
    ours = outcome(make(mps_trainer, name, tmp_path / "ours", save_strategy="no"), checkpoint)
    assert ours["seen"] == theirs["seen"]
    assert ours["losses"] == pytest.approx(theirs["losses"], abs=1e-6)
    assert ours["next draw"] == theirs["next draw"]


@pytest.mark.parametrize("name", CASES)
def test_resumed_run_goes_on_as_if_it_had_not_been_interrupted(tmp_path, name):
    whole = make(mps_trainer, name, tmp_path / "whole", save_strategy="steps")
    whole.train()
    resumed = make(mps_trainer, name, tmp_path / "resumed", save_strategy="no")
    torch.manual_seed(99)  # whatever happened before
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{STOP}"))
    assert resumed.model.seen == whole.model.seen[-len(resumed.model.seen) :]
    assert_same_weights(weights(whole.model), weights(resumed.model))
