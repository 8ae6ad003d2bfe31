"""Batches that do not fit into memory are trained on in parts, with the same steps."""

from __future__ import annotations

import os

import pytest
import torch
from transformers import TrainerCallback

from mps_trainer import Trainer
from mps_trainer.data.split import split
from tests.conftest import Classifier, examples, logged, weights


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


def pairs(rows):
    """Collates as TRL's trainers on preferences do: the rejected answers are below the chosen ones."""
    points = torch.stack([row["x"] for row in rows])
    return {"x": torch.cat([points, -points]), "labels": torch.tensor([row["labels"] for row in rows] * 2)}


@pytest.mark.parametrize("count", [40, 36])  # the last batch of an epoch may have as many rows as others have examples
def test_batches_with_more_rows_than_examples_stay_whole(make_trainer, caplog, count):
    model = Small(16)
    settings = {**SETTINGS, "gradient_accumulation_steps": 1, "max_steps": 8}
    trainer = make_trainer({"model": model, "train_dataset": examples(count), "data_collator": pairs}, **settings)

    def limit(*_, **__):
        trainer._mt_run.run_state.examples_at_a_time = 4  # as after a restart because of memory

    trainer.add_callback(type("Limit", (TrainerCallback,), {"on_train_begin": limit}))
    trainer.train()
    assert set(model.sizes) == {16} | ({8} if count == 36 else set())
    assert caplog.text.count("stays whole") == 1
    assert "more rows than examples" in caplog.text


def test_memory_that_runs_out_with_more_rows_than_examples_ends_the_run(make_trainer):
    trainer = make_trainer({"model": Small(4), "data_collator": pairs}, **SETTINGS)
    with pytest.raises(RuntimeError, match="more rows than examples"):
        trainer.train()


def test_override_of_split_batch_may_split_batches_with_more_rows(make_trainer):
    class Pairs(Trainer):
        def split_batch(self, batch, most):
            pairs = {name: rows.view(2, -1, *rows.shape[1:]).transpose(0, 1) for name, rows in batch.items()}
            return [{name: each[name].transpose(0, 1).flatten(0, 1) for name in each} for each in split(pairs, most)]

    model = Small(8)
    settings = {**SETTINGS, "max_steps": 1, "gradient_accumulation_steps": 1}
    make_trainer({"kind": Pairs, "model": model, "data_collator": pairs}, **settings).train()
    assert model.sizes[0] == 16
    assert max(model.sizes[1:]) <= 8
