"""Batches that do not fit into memory are trained on in parts, with the same steps."""

from __future__ import annotations

import os

import pytest
import torch

from tests.conftest import Classifier, logged, weights


class Small(Classifier):
    """Runs out of memory with more than `fits` examples."""

    def __init__(self, fits: int) -> None:
        torch.manual_seed(0)
        super().__init__(dropout=0.0)
        self.fits, self.sizes = fits, []

    def forward(self, x, labels=None):
        self.sizes.append(len(x))
        if len(x) > self.fits:
            raise torch.OutOfMemoryError("MPS backend out of memory")
        return super().forward(x, labels)


SETTINGS = {"auto_find_batch_size": True, "max_steps": 4, "gradient_accumulation_steps": 2, "learning_rate": 1e-2}


def test_a_run_in_parts_takes_the_steps_of_one_in_whole_batches(make_trainer):
    whole = make_trainer({"model": Small(8)}, **SETTINGS)
    whole.train()
    parts = make_trainer({"model": Small(2)}, **SETTINGS)
    parts.train()
    assert set(whole.model.sizes) == {8}
    assert parts.model.sizes[:2] == [8, 4]  # halved until it fits
    assert set(parts.model.sizes[2:]) == {2}
    assert logged(parts, "loss") == pytest.approx(logged(whole, "loss"), rel=1e-5)
    for name, weight in weights(parts.model).items():
        torch.testing.assert_close(weight, weights(whole.model)[name], rtol=1e-4, atol=1e-5)  # sums in another order


def test_memory_that_runs_out_within_an_update_begins_it_again(make_trainer):
    class Later(Small):
        """Has room for the first batch of the first update."""

        def forward(self, x, labels=None):
            self.fits = 8 if not self.sizes else 4
            return super().forward(x, labels)

    whole, again = make_trainer({"model": Small(8)}, **SETTINGS), make_trainer({"model": Later(8)}, **SETTINGS)
    whole.train()
    again.train()
    assert again.model.sizes[:4] == [8, 8, 4, 4]
    assert logged(again, "loss") == pytest.approx(logged(whole, "loss"), rel=1e-5)
    assert again.state.total_flos == whole.state.total_flos


def test_a_repeated_update_draws_the_same_numbers_and_counts_running_means_once(make_trainer):
    class Drawing(Small):
        """Draws from the generators and counts its batches before it runs out of memory."""

        def __init__(self, fits: int) -> None:
            super().__init__(fits)
            self.register_buffer("batches", torch.zeros(()))
            self.draws = []

        def forward(self, x, labels=None):
            self.batches += 1
            self.draws.append((len(x), float(torch.rand(()))))
            return super().forward(x, labels)

    parts = make_trainer({"model": Drawing(4)}, **{**SETTINGS, "max_steps": 1})
    parts.train()
    assert [size for size, _ in parts.model.draws] == [8, 4, 4, 4, 4]
    assert parts.model.draws[0][1] == parts.model.draws[1][1]
    assert parts.model.batches == 4


def test_a_resumed_run_begins_with_the_size_that_was_found(make_trainer):
    first = make_trainer({"model": Small(2)}, save_strategy="steps", save_steps=2, **SETTINGS)
    first.train()
    again = make_trainer({"model": Small(2)}, **SETTINGS)
    again.train(resume_from_checkpoint=os.path.join(first.args.output_dir, "checkpoint-2"))
    assert set(again.model.sizes) == {2}
    assert again.state.global_step == 4
