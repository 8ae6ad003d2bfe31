"""Columns that the model does not take never reach it."""

import pickle

import pytest
import torch
from transformers import SequenceFeatureExtractor

from mps_trainer.data.columns import signature_columns
from tests.conftest import Classifier


def test_default_collator_pads_with_what_can_pad(make_trainer):
    class Extractor(SequenceFeatureExtractor):
        def pad(self, rows, **kwargs):
            return {"x": torch.zeros(len(rows), 4), "labels": torch.zeros(len(rows), dtype=torch.long)}

    extractor = Extractor(feature_size=4, sampling_rate=1, padding_value=0.0)
    trainer = make_trainer({"processing_class": extractor, "model": Classifier()}, max_steps=1, save_strategy="no")
    assert next(iter(trainer.get_train_dataloader()))["x"].sum() == 0


def test_columns_are_those_of_the_model_under_the_adapters():
    class Adapted(torch.nn.Module):
        peft_config = None

        def get_base_model(self):
            return Classifier()

        def forward(self, *args, **kwargs):
            raise AssertionError

    assert signature_columns(Adapted(), ["labels"]) == ["x", "labels", "label", "label_ids"]


@pytest.mark.parametrize("strategy", ["random", "group_by_length", "bucket_by_length"])
def test_what_a_spawned_worker_gets_can_be_pickled(make_trainer, strategy):
    rows = [{"x": torch.zeros(4), "labels": 0, "length": 4, "input_ids": [1, 2]} for _ in range(8)]
    settings = {"dataloader_num_workers": 1, "train_sampling_strategy": strategy}
    trainer = make_trainer({"train_dataset": rows, "eval_dataset": rows}, **settings)
    for loader in (trainer.get_train_dataloader(), trainer.get_eval_dataloader()):
        pickle.loads(pickle.dumps((loader.dataset, loader.collate_fn, loader.worker_init_fn)))
