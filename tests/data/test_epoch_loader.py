"""Loaders prepared for epochs, one batch ahead, and begun in the middle."""

import pytest
import torch
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from mps_trainer.data.epoch_loader import (
    EpochLoader,
    epoch_batches,
    keep_examples,
    length_of,
    num_examples,
    prepare_loader,
)
from mps_trainer.distributed import Processes
from mps_trainer.training_args import TrainingArguments
from tests.conftest import Stream


def prepared(loader, processes=None):
    return prepare_loader(loader, TrainingArguments(use_cpu=True), processes or Processes())


class Counted(torch.utils.data.Dataset):
    def __init__(self) -> None:
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> int:
        self.loaded.append(i)
        return i


class Own(DataLoader):
    def __iter__(self):
        return (batch + 100 for batch in super().__iter__())


def lists(batches) -> list:
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


def test_prepared_loader_keeps_what_it_was_made_with_and_says_when_its_last_batch_was_given():
    loader = prepared(DataLoader(Counted(), 3, sampler=RandomSampler(Counted()), drop_last=True, collate_fn=list))
    assert isinstance(loader, EpochLoader)
    assert (loader.batch_size, loader.drop_last, loader.collate_fn, len(loader)) == (3, True, list, 3)
    assert prepared(loader) is loader
    assert prepared([1, 2]) == [1, 2]
    assert [loader.end_of_dataloader for _ in loader] == [False, False, True]
    assert loader.iteration == 1
    assert length_of(DataLoader(Stream(range(10)), 3)) is None
    assert length_of([1, 2]) == 2
    assert num_examples([1, 2], 8) == 16
    assert num_examples(loader, 8) == 10


NUMBERS = range(10)
LOADERS = [
    lambda: prepared(DataLoader(Counted(), 3, shuffle=True)),
    lambda: prepared(DataLoader(Counted(), batch_sampler=BatchSampler(NUMBERS, 3, False))),
    lambda: prepared(DataLoader(Stream(NUMBERS), 3)),
    lambda: prepared(DataLoader(Counted(), batch_size=None, sampler=NUMBERS)),
    lambda: prepared(DataLoader(Counted(), batch_size=None, sampler=BatchSampler(NUMBERS, 3, False))),
    lambda: DataLoader(Counted(), 3),
    lambda: DataLoader(Stream(NUMBERS), 3),
    lambda: Own(Counted(), 3),
    lambda: [torch.ones(1), torch.zeros(1), torch.ones(2)],
]


@pytest.mark.parametrize("make", LOADERS)
def test_epoch_begun_in_the_middle_has_the_rest_of_its_batches(make):
    def run(skip):
        return lists(epoch_batches(make(), 1, skip))

    whole = run(0)
    for skip in (1, 2):
        assert run(skip) == whole[skip:]
    data = Counted()
    lists(epoch_batches(prepared(DataLoader(data, 2)), 0, skip=3))
    assert data.loaded == [6, 7, 8, 9]  # those left out are not loaded


def test_a_stream_keeps_no_examples_of_batches_that_are_left_out():
    loader = prepared(DataLoader(Stream(range(12)), batch_size=2, collate_fn=sum))
    keep_examples(loader)
    batches = epoch_batches(loader, 3, skip=2)
    assert next(batches) == 4 + 5
    assert loader.examples == {(3, 2): [4, 5], (3, 3): [6, 7]}  # the batch, and the one that is loaded ahead


@pytest.mark.parametrize("drop_last", [True, False])
def test_a_batch_sampler_of_the_users_says_whether_processes_leave_out_a_last_batch(drop_last):
    """Accelerate asks it too; the loader's own `drop_last` is False beside a batch_sampler."""
    loader = DataLoader(Counted(), batch_sampler=BatchSampler(SequentialSampler(range(9)), 3, drop_last))
    theirs = prepare_data_loader(loader, num_processes=2, process_index=0, put_on_device=False)
    assert len(prepared(loader, Processes(0, 2))) == len(theirs) == (1 if drop_last else 2)
