"""The DataLoaders that the arguments describe."""

import pytest
import torch
from torch.utils.data import DataLoader

from mps_trainer.data.dataloaders import loading_settings, make_dataloader, make_persistent
from mps_trainer.data.loader import prepare_loader
from tests.conftest import examples


@pytest.mark.parametrize(("workers", "given", "expected"), [(0, "fork", None), (2, None, None), (2, "fork", "fork")])
def test_workers_on_mps_start_as_python_starts_them_unless_told_otherwise(make_args, workers, given, expected):
    args = make_args(dataloader_num_workers=workers, dataloader_multiprocessing_context=given)
    args.__dict__["device"] = torch.device("mps")
    settings = loading_settings(args)
    assert settings["multiprocessing_context"] == expected
    assert not settings["pin_memory"]


@pytest.mark.parametrize(("is_training", "drop_last"), [(True, True), (False, False)])
def test_workers_get_seeds_for_training_alone(make_args, is_training, drop_last):
    args = make_args(dataloader_drop_last=drop_last)
    loader = make_dataloader(examples(10), list, args, 4, is_training=is_training)
    assert (loader.worker_init_fn is not None) == is_training
    assert [len(batch) for batch in loader] == ([4, 4] if drop_last else [4, 4, 2])


def test_persistent_workers_of_evaluations_have_seeds_by_the_name_of_the_dataset():
    purposes = []
    for key in ("eval", "a"):
        settings = {"num_workers": 1, "persistent_workers": True}
        loader = prepare_loader(DataLoader([1, 2], **settings))
        make_persistent(loader, dataset := [1, 2], key, seed=3)
        assert loader.made_for is dataset
        assert loader.generator.initial_seed() == 3
        purposes.append(loader.worker_init_fn.purpose)
    assert len({0, *purposes}) == 3
