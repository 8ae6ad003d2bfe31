"""The methods that make loaders, called or overridden, beside those of transformers' Trainer."""

import logging
import re

import pytest
import torch
from torch.utils.data import DataLoader, SequentialSampler

import mps_trainer
from tests.conftest import Classifier, examples, refusal
from tests.dropin.conftest import Library
from tests.dropin.test_data import BATCH, SIZE, Bag, Stream, pad, rows, table


def make(library, override=None, data=None, **settings):
    kind = type("Subclass", (override, library.module.Trainer), {}) if override else None
    data = rows() if data is None else data
    defaults = {"model": Bag(), "data_collator": pad, "train_dataset": data, "eval_dataset": data}
    sizes = {"per_device_train_batch_size": BATCH, "per_device_eval_batch_size": BATCH}
    return library.trainer(kind=kind, **{**defaults, **sizes, **settings})


def seen(loader) -> list[list[int]]:
    return [batch["input_ids"][:, 0].tolist() for batch in loader]


@pytest.mark.parametrize("strategy", ["random", "sequential", "group_by_length"])
@pytest.mark.parametrize("data", [rows, table, Stream], ids=lambda data: data.__name__)
def test_evaluation_order_is_that_of_transformers(assert_same_runs, strategy, data):
    def run(library):
        trainer = make(library, data=data(), train_sampling_strategy=strategy, max_steps=2)
        return seen(trainer.get_eval_dataloader()), seen(trainer.get_test_dataloader(data()))

    assert_same_runs(run)


def test_train_loader_iterated_by_hand_has_order_of_transformers(assert_same_runs):
    def run(library):
        trainer = make(library)
        torch.manual_seed(7)
        loader = trainer.get_train_dataloader()
        assert isinstance(loader, DataLoader)
        orders = [seen(loader) for _ in range(3)]
        loader.set_epoch(1)
        return [*orders, seen(loader)], len(loader), loader.total_batch_size, loader.total_dataset_length

    assert_same_runs(run)


def test_signature_columns_of_subclass_are_kept(library):
    class Named:
        def _set_signature_columns_if_needed(self):
            if self._signature_columns is None:
                self._signature_columns = ["input_ids", "labels", "idx"]

    for data in (table(), table().to_iterable_dataset(), [{**row, "idx": 1, "text": "a"} for row in rows()]):
        kept = set()

        def collate(items, kept=kept):
            kept.update(*items)
            return pad(items)

        seen(make(library, Named, data, data_collator=collate, max_steps=2).get_train_dataloader())
        assert kept == {"input_ids", "labels", "idx"}


def test_train_sampler_override_of_transformers_4_takes_no_dataset(tmp_path):
    class Before:
        def _get_train_sampler(self):
            return SequentialSampler(self.train_dataset)

    assert seen(make(Library(mps_trainer, tmp_path), Before).get_train_dataloader())[0] == [0, 1, 2, 3]


def test_list_of_batches_may_be_the_train_loader(library):
    class Listed:
        def get_train_dataloader(self):
            return [pad(rows()[i : i + 2]) for i in range(0, 6, 2)]

        def num_examples(self, dataloader):
            return 6

    trainer = make(library, Listed, num_train_epochs=2, train_dataset=None)
    trainer.train()
    assert trainer.model.seen == [[0, 1], [2, 3], [4, 5]] * 2


@pytest.mark.parametrize("persistent", [True, False])
def test_evaluation_loader_is_kept_only_if_its_workers_persist(library, persistent):
    settings = {"dataloader_num_workers": 1, "dataloader_persistent_workers": persistent}
    trainer = make(library, eval_dataset={"a": rows(), "b": rows(6)}, **settings)
    assert (trainer.get_eval_dataloader("a") is trainer.get_eval_dataloader("a")) == persistent
    assert trainer.get_eval_dataloader("a") is not trainer.get_eval_dataloader("b")
    assert len(trainer.get_eval_dataloader("b").dataset) == 6
    if library.is_ours:  # transformers gives the loader of the first dataset again
        trainer = make(library, **settings)
        assert [len(trainer.get_eval_dataloader(data).dataset) for data in (None, rows(6))] == [SIZE, 6]


def test_lowered_batch_size_reaches_the_train_loader_and_num_examples_counts_dataset_or_batches(library):
    trainer = make(library)
    assert trainer.num_examples(trainer.get_train_dataloader()) == SIZE
    assert trainer.num_examples([1, 2, 3]) == 3 * BATCH
    trainer = make(library)
    trainer._train_batch_size = 2
    assert len(trainer.get_train_dataloader()) == SIZE // 2


def test_num_tokens_counts_input_ids():
    batches = [pad(rows()[:4]), pad(rows()[4:6])]
    size = batches[0]["input_ids"].numel()
    assert mps_trainer.Trainer.num_tokens(batches) == size + batches[1]["input_ids"].numel()
    assert mps_trainer.Trainer.num_tokens(batches, max_steps=5) == 5 * size
    assert mps_trainer.Trainer.num_tokens([{"x": torch.ones(2)}]) == 0


def test_missing_datasets_and_lengths_are_value_errors(library):
    trainer = make(library, train_dataset=None, eval_dataset=None)
    for get in (trainer.get_train_dataloader, trainer.get_eval_dataloader):
        assert re.search(r"train_dataset|eval_dataset", refusal(get, kind=ValueError))
    trainer = make(library, data=examples(8), model=Classifier(), train_sampling_strategy="group_by_length")
    assert "'input_ids'" in refusal(trainer.get_train_dataloader, kind=ValueError)


def test_names_and_data_that_no_loader_can_read_are_refused(tmp_path):
    trainer = make(Library(mps_trainer, tmp_path), eval_dataset={"a": rows(), "b": rows()})
    assert "no evaluation dataset 'c': the Trainer has those named a, b" in refusal(trainer.evaluate, "c")
    trainer = make(Library(mps_trainer, tmp_path), train_dataset=iter(rows()), max_steps=1)
    assert "training data is of type list_iterator" in refusal(trainer.train)
    assert "has no datasets with names" in refusal(trainer.evaluate, "a")
    assert "evaluation data is of type DataLoader" in refusal(trainer.predict, DataLoader(rows()))


@pytest.mark.parametrize("strategy", ["group_by_length", "bucket_by_length"])
def test_stream_is_not_grouped_by_length_with_a_warning(tmp_path, caplog, strategy):
    grouped, plain = (
        make(Library(mps_trainer, tmp_path), data=Stream(), train_sampling_strategy=each, max_steps=2)
        for each in (strategy, "random")
    )
    with caplog.at_level(logging.WARNING):
        for name in ("get_train_dataloader", "get_eval_dataloader"):
            assert seen(getattr(grouped, name)()) == seen(getattr(plain, name)())
    assert f"train_sampling_strategy='{strategy}' has no effect" in caplog.text


def test_lengths_are_those_of_first_input_of_processing_class(library):
    class Reader:
        model_input_names = ("sounds",)

    data = [{"sounds": [0] * (1 + i % 7), "input_ids": [i], "labels": 0} for i in range(SIZE)]
    trainer = make(library, data=data, train_sampling_strategy="group_by_length", processing_class=Reader())
    assert list(trainer._get_train_sampler().lengths) == [1 + i % 7 for i in range(SIZE)]
