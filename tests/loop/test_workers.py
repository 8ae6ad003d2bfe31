"""Processes of the loader end with the training."""

import gc
import multiprocessing
from itertools import pairwise

import pytest
import torch
from torch.utils.data import Dataset
from transformers import DefaultDataCollator

from mps_trainer import Trainer
from mps_trainer.data.workers import close_workers
from tests.conftest import callback, examples


@pytest.fixture
def left():
    """`left()` returns the processes that are there since the test began.

    A cycle of references would keep workers alive until it is collected, which may come by chance in time.
    """
    gc.disable()
    before = set(multiprocessing.active_children())
    yield lambda: set(multiprocessing.active_children()) - before
    gc.enable()


@pytest.mark.parametrize("persistent", [False, True])
def test_a_run_that_ends_within_an_epoch_leaves_no_worker(make_trainer, left, persistent):
    workers = {"dataloader_num_workers": 1, "dataloader_persistent_workers": persistent}
    trainer = make_trainer(**workers, per_device_train_batch_size=4, max_steps=2)
    trainer.train()
    assert not left()


class OneBadRow(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, row):
        if row == 7:
            raise KeyError("no such text")
        return {"x": torch.zeros(4), "labels": 0}


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("method", ["train", "evaluate"])
def test_an_error_in_a_worker_leaves_none_although_its_traceback_holds_their_iterator(
    make_trainer, left, persistent, method
):
    workers = {"dataloader_num_workers": 2, "dataloader_persistent_workers": persistent}
    trainer = make_trainer({"train_dataset": OneBadRow(), "eval_dataset": OneBadRow()}, **workers)
    with pytest.raises(KeyError) as raised:
        getattr(trainer, method)()
    assert not left()
    assert raised.value.__traceback__ is not None


def test_evaluations_within_a_run_share_workers_that_end_with_it(make_trainer, left):
    seen = []
    watch = callback(on_evaluate=lambda **_: seen.append({child.pid for child in left()}))
    settings = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True, "max_steps": 3}
    trainer = make_trainer({"callbacks": [watch]}, eval_strategy="steps", eval_steps=1, **settings)
    trainer.train()
    assert len(seen) == 3
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) == 2  # one of training, one of evaluations
    assert not left()


def test_evaluations_and_predictions_of_their_own_leave_no_worker(make_trainer, left):
    trainer = make_trainer(dataloader_num_workers=1, dataloader_persistent_workers=True)
    first = trainer.evaluate()
    assert not left()
    assert trainer.evaluate()["eval_loss"] == first["eval_loss"]
    trainer.predict(trainer.eval_dataset)
    assert not left()


def test_evaluations_share_a_loader_until_data_or_batches_change(make_trainer, left):
    trainer = make_trainer(dataloader_num_workers=1, dataloader_persistent_workers=True)
    seen = []
    trainer.add_callback(callback(on_evaluate=lambda eval_dataloader, **_: seen.append(eval_dataloader)))
    for size, dataset in [(8, None), (8, None), (4, None), (4, examples(5)), (4, None)]:
        trainer.args.per_device_eval_batch_size = size
        trainer.evaluate(dataset)
    trainer.data_collator = DefaultDataCollator()
    trainer.evaluate()
    assert [loader is before for before, loader in pairwise(seen)] == [True, False, False, False, False]
    assert [len(loader) for loader in seen] == [3, 3, 6, 2, 6, 6]
    assert not left()


def test_a_loader_that_takes_the_place_of_another_ends_the_workers_of_a_finished_pass(make_trainer, left):
    trainer = make_trainer(dataloader_num_workers=1, dataloader_persistent_workers=True)
    first = trainer.get_eval_dataloader()
    batches = len(list(first))
    assert len(left()) == 1
    second = trainer.get_eval_dataloader(examples(33))
    assert not left()
    within = iter(second)
    next(within)
    trainer.get_eval_dataloader(examples(5))  # another evaluation within this one
    assert len(list(within)) == 4
    assert len(list(first)) == batches  # starts workers again
    close_workers(first, second)
    assert not left()


class KeepsLoaders(Trainer):
    """Keeps evaluation loaders in transformers' attribute, as sentence-transformers and TRL do."""

    def get_eval_dataloader(self, eval_dataset=None):
        key = eval_dataset if isinstance(eval_dataset, str) else "eval"
        if key not in self._eval_dataloaders:
            self._eval_dataloaders[key] = super().get_eval_dataloader(eval_dataset)
        return self._eval_dataloaders[key]


def test_loaders_that_a_subclass_keeps_serve_later_evaluations(make_trainer, left):
    settings = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True, "max_steps": 2}
    data = {"first": examples(8), "second": examples(12)}
    trainer = make_trainer({"kind": KeepsLoaders, "eval_dataset": data}, **settings, eval_strategy="epoch")
    before = trainer.evaluate()
    loader = trainer.get_eval_dataloader("first")
    trainer.train()
    assert trainer.get_eval_dataloader("first") is loader
    assert trainer.evaluate().keys() >= {"eval_first_loss", "eval_second_loss"} <= before.keys()
    assert not left()


def test_a_loader_of_somebody_elses_keeps_its_iterator(make_trainer):
    class Own:
        def __init__(self, batches):
            self.batches, self._iterator = batches, object()

        def __len__(self):
            return len(self.batches)

        def __iter__(self):
            return iter(self.batches)

    class OwnLoader(Trainer):
        def get_train_dataloader(self):
            return Own(list(super().get_train_dataloader()))

    trainer = make_trainer({"kind": OwnLoader}, max_steps=2)
    trainer.train()
    assert trainer.state.global_step == 2
