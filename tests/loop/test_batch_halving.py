"""With auto_find_batch_size, a run that runs out of memory continues with the same updates as with enough memory."""

import gc
import json
import os
import re
from collections import Counter
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import default_data_collator

from mps_trainer import Trainer
from mps_trainer.data.epoch_loader import load_in_parts
from mps_trainer.data.split import split
from mps_trainer.distributed import Processes
from mps_trainer.guards.memory_errors import DeviceOutOfMemoryError
from mps_trainer.loop.run import TrainingRun
from tests.conftest import (
    Classifier,
    Stream,
    assert_same_weights,
    callback,
    examples,
    logged,
    messages_with,
    refusal,
    weights,
)

OUT_OF_MEMORY = "MPS backend out of memory (MPS allocated: 1.00 GiB, max allowed: 1.00 GiB)."


class Raises(torch.autograd.Function):
    """Runs out of memory in the backward pass for more than `fits` rows."""

    @staticmethod
    def forward(ctx, x, fits):
        ctx.rows, ctx.fits = len(x), fits
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.rows > ctx.fits:
            raise RuntimeError(OUT_OF_MEMORY)
        return gradient, None


class Hungry(Classifier):
    """Has memory for `fits` examples, or for `fits(number, rows)` in a batch by its number and rows.

    When it runs out, the gradients of its head exist already.
    """

    main_input_name = "x"

    def __init__(self, fits=10**9):
        torch.manual_seed(0)
        super().__init__(dropout=0.0)
        self.fits, self.sizes = fits, []

    def num_parameters(self, exclude_embeddings=True):
        return 10

    def logits(self, x):
        fits = self.fits(len(self.sizes), len(x)) if callable(self.fits) else self.fits
        self.sizes.append(len(x))
        return self.head(self.norm(Raises.apply(torch.tanh(self.hidden(x)), fits)))

    def forward(self, x, labels=None):
        logits = self.logits(x)
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten()), "logits": logits}


@pytest.fixture
def train(trained):
    """`train(model, **settings)` trains with auto_find_batch_size and returns the Trainer."""

    def train(model, trainer=None, **settings):
        return trained({"model": model, **(trainer or {})}, **{"auto_find_batch_size": True, **settings})

    return train


def assert_same_run(scarce, enough):
    assert scarce.state.global_step == enough.state.global_step
    assert logged(scarce, "epoch") == logged(enough, "epoch")
    assert logged(scarce, "loss") == pytest.approx(logged(enough, "loss"), abs=1e-6)
    assert logged(scarce, "grad_norm") == pytest.approx(logged(enough, "grad_norm"), abs=1e-5)
    assert scarce.state.total_flos == enough.state.total_flos
    assert scarce.state.num_input_tokens_seen == enough.state.num_input_tokens_seen
    torch.testing.assert_close(weights(scarce.model), weights(enough.model), rtol=0, atol=1e-5)


@pytest.mark.every_device
@pytest.mark.parametrize(
    ("size", "accumulation", "fits", "found"), [(8, 1, 4, 4), (8, 1, 1, 1), (9, 1, 4, 3), (7, 2, 2, 2), (5, 3, 4, 3)]
)
def test_updates_equal_those_of_a_run_with_enough_memory(train, caplog, size, accumulation, fits, found):
    settings = {
        **{"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulation},
        **{"num_train_epochs": 2, "learning_rate": 1e-2, "include_num_input_tokens_seen": "all"},
    }
    enough = train(Hungry(), auto_find_batch_size=False, **settings)
    scarce = train(Hungry(fits), **settings)
    assert_same_run(scarce, enough)
    assert scarce.state.train_batch_size == found <= fits
    halvings = [size]
    while halvings[-1] > fits:
        halvings.append(-(-halvings[-1] // 2))
    for before, line in zip(halvings[:-1], messages_with(caplog, "Memory ran out"), strict=True):
        assert f"{before} examples" in line
        assert "step 1 " in line


def test_only_the_failed_update_is_repeated_and_a_short_last_batch_is_halved(train):
    model = Hungry(lambda number, rows: 8 if number < 3 else 4)
    assert train(model, max_steps=5).model.sizes == [8, 8, 8, 8, 4, 4, 4, 4]
    model = Hungry(lambda number, rows: 8 if rows == 8 else 1)
    train(model, {"train_dataset": examples(11)}, num_train_epochs=1)
    assert model.sizes == [8, 3, 2, 1, 1, 1]


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.filterwarnings("ignore:.*is assumed to divide")
def test_parts_of_a_batch_do_not_add_up_to_a_larger_loss_if_a_subclass_ignores_the_items(train, accumulation):
    class Silent(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
            return model(**inputs)["loss"]

    def run(fits):
        model = Hungry(fits)
        model.accepts_loss_kwargs = True
        settings = {"gradient_accumulation_steps": accumulation, "train_sampling_strategy": "sequential"}
        return train(model, {"kind": Silent}, max_steps=3, **settings)

    assert_same_run(run(3), run(8))


def test_a_subclass_that_divides_by_the_items_does_so_after_memory_ran_out_before_it_could(train):
    class Dividing(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            if len(inputs["x"]) > model.fits:
                raise RuntimeError(OUT_OF_MEMORY)
            loss = nn.functional.cross_entropy(model.logits(inputs["x"]), inputs["labels"], reduction="sum")
            return loss / num_items_in_batch

    def run(fits):
        model = Hungry()
        model.accepts_loss_kwargs, model.fits = True, fits
        return train(model, {"kind": Dividing}, max_steps=3, train_sampling_strategy="sequential")

    assert_same_run(run(3), run(8))


def test_repeated_update_is_counted_once(train):
    settings = {"gradient_accumulation_steps": 2, "max_steps": 2, "include_num_input_tokens_seen": "all"}
    enough = train(Hungry(), **settings)
    scarce = train(Hungry(lambda number, rows: 4 if number == 1 else 8), **settings)  # it runs out amid an update
    assert scarce.model.sizes == [8, 8, *[4] * 8]
    assert scarce.state.total_flos > 0
    assert scarce.state.num_input_tokens_seen > 0
    assert_same_run(scarce, enough)


def test_parts_weigh_by_labels_that_are_not_ignored(train):
    """Rows have 0 to 3 labels that count. Halves of a batch have unequal numbers of them, or none."""
    generator = torch.Generator().manual_seed(1)
    rows = []
    for i in range(32):
        labels = torch.randint(0, 2, (3,), generator=generator)
        labels[: (0, 3, 1, 3)[i % 4] if i < 24 else 3 * (i % 2)] = -100
        rows.append({"x": torch.randn(3, 4, generator=generator), "labels": labels})
    settings = {
        **{"gradient_accumulation_steps": 2, "learning_rate": 1e-2, "num_train_epochs": 1},
        **{"per_device_train_batch_size": 6, "trainer": {"train_dataset": rows, "eval_dataset": None}},
    }
    enough = train(Hungry(100), **settings)
    for fits in (3, 1):
        assert_same_run(train(Hungry(fits), **settings), enough)


@pytest.mark.every_device(same_draws_as_cpu=True)
def test_resumed_run_begins_with_found_size(train, make_trainer):
    settings = {
        **{"auto_find_batch_size": True, "max_steps": 6, "learning_rate": 1e-2, "save_strategy": "steps"},
        **{"save_steps": 2, "gradient_accumulation_steps": 2},
    }
    whole = train(Hungry(3), **settings)
    checkpoint = os.path.join(whole.args.output_dir, "checkpoint-2")
    with open(os.path.join(checkpoint, "trainer_state.json")) as file:
        assert json.load(file)["train_batch_size"] == 2
    resumed = make_trainer({"model": Hungry(3)}, **settings)
    assert resumed._train_batch_size == 8
    resumed.train(resume_from_checkpoint=checkpoint)
    assert max(resumed.model.sizes) == 2
    assert_same_weights(weights(resumed.model), weights(whole.model))
    assert logged(resumed, "loss") == logged(whole, "loss")
    for trainer in (whole, resumed):
        assert trainer._train_batch_size == trainer.state.train_batch_size == 2


def test_only_the_callback_that_ran_out_of_memory_is_called_again(train, caplog):
    settings = {"max_steps": 2, "learning_rate": 1e-2}
    enough = train(Hungry(), **settings)
    calls = [[], [], []]

    def samples(number, fits):
        def take(state, **_):
            calls[number].append((state.global_step, state.train_batch_size))
            if state.train_batch_size > fits:
                raise RuntimeError(OUT_OF_MEMORY)

        return callback(on_step_end=take)

    callbacks = [samples(number, fits) for number, fits in enumerate((8, 2, 8))]
    scarce = train(Hungry(), {"callbacks": callbacks}, **settings)
    assert calls == [[(1, 8), (2, 2)], [(1, 8), (1, 4), (1, 2), (2, 2)], [(1, 2), (2, 2)]]
    assert scarce.model.sizes == [8, 2, 2, 2, 2]
    assert_same_run(scarce, enough)
    first, second = messages_with(caplog, "Memory ran out")
    assert "in step 1 with batches of 8 " in first
    assert "in step 1 with batches of 4 " in second


@pytest.mark.parametrize(
    ("message", "kind", "match"),
    [(OUT_OF_MEMORY, DeviceOutOfMemoryError, "one example"), ("another reason", RuntimeError, "another reason")],
)
def test_callback_that_fails_beside_one_example_or_otherwise_ends_the_run(make_trainer, message, kind, match):
    fail = mock.Mock(side_effect=RuntimeError(message))
    trainer = make_trainer({"callbacks": [callback(on_step_end=fail)]}, auto_find_batch_size=True, max_steps=2)
    assert re.search(match, refusal(trainer.train, kind=kind))
    assert trainer.state.global_step == 1


def test_memory_that_runs_out_in_a_callback_of_one_of_several_processes_ends_the_run(make_trainer, monkeypatch):
    fail = mock.Mock(side_effect=RuntimeError(OUT_OF_MEMORY))
    trainer = make_trainer({"callbacks": [callback(on_step_end=fail)]}, auto_find_batch_size=True, max_steps=2)
    run = TrainingRun(trainer)
    monkeypatch.setattr(trainer, "_mt_processes", Processes(size=2))  # the other one would exchange nothing
    assert OUT_OF_MEMORY in refusal(run.splitter.end_step, kind=RuntimeError)


def test_next_run_begins_with_batch_size_of_arguments(train):
    trainer = train(Hungry(4), max_steps=1)
    trainer.model.fits, trainer.model.sizes = 8, []
    trainer.train()
    assert trainer.model.sizes == [8]


def test_scaler_of_float16_continues(mps, train):
    enough, scarce = (train(Hungry(fits), fp16=True, max_steps=4) for fits in (100, 4))
    assert scarce.accelerator.scaler.get_scale() == enough.accelerator.scaler.get_scale()
    assert logged(scarce, "loss") == pytest.approx(logged(enough, "loss"), abs=2e-3)  # rounded to float16


def wide():
    """Returns a model that takes a megabyte for each example."""
    torch.manual_seed(0)
    model = Classifier()
    model.hidden, model.head = nn.Linear(4, 2**16), nn.Linear(2**16, 2)
    model.norm = model.dropout = nn.Identity()
    return model


@pytest.mark.every_device(memory="24MB")
def test_small_device_trains_as_a_larger_one(device, train):
    gc.collect()
    made = []
    for size, accumulation in ((32, 1), (16, 2)):
        trainer = train(
            wide(), per_device_train_batch_size=size, gradient_accumulation_steps=accumulation, max_steps=3,
            learning_rate=1e-3,
        )  # fmt: skip
        made.append(trainer)
        trainer.model.cpu()
        del trainer.optimizer
    first, second = made
    assert first.state.train_batch_size == (32 if device == "cpu" else 16)
    assert second.state.train_batch_size == 16
    assert logged(first, "loss") == pytest.approx(logged(second, "loss"), abs=1e-5)


def packed(rows):
    """Joins all rows into one, which cannot be cut in the first dimension."""
    return {
        "x": torch.cat([row["x"] for row in rows])[None],
        "labels": torch.tensor([row["labels"] for row in rows])[None],
    }


def patches(rows):
    """Has two rows of `x` for a negative example and three for a positive one, like patches of images."""
    count = [2 + row["labels"] for row in rows]
    x = torch.cat([row["x"].expand(times, 4) for row, times in zip(rows, count, strict=True)])
    return {"x": x, "count": torch.tensor(count), "labels": torch.tensor([row["labels"] for row in rows])}


def pairs(rows):
    """Collates like TRL's trainers for preferences: the rejected answers come after the chosen ones."""
    points = torch.stack([row["x"] for row in rows])
    return {"x": torch.cat([points, -points]), "labels": torch.tensor([row["labels"] for row in rows] * 2)}


class Packed(Hungry):
    def logits(self, x):
        return super().logits(x.view(-1, 4))


class Patches(Hungry):
    def forward(self, x, labels=None, count=None):
        logits = torch.stack([part.mean(0) for part in self.logits(x).split(count.tolist())])
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.every_device
@pytest.mark.parametrize(
    ("kind", "collate", "fits"), [(Packed, packed, 4), (Patches, patches, 12), (Hungry, pairs, 8)]
)
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_that_cannot_be_cut_are_loaded_again(train, device, caplog, kind, collate, fits, workers):
    settings = {
        "max_steps": 6, "gradient_accumulation_steps": 2, "max_grad_norm": 10.0, "learning_rate": 1e-2,
        "dataloader_num_workers": workers,
    }  # fmt: skip
    given = {"data_collator": collate, "eval_dataset": None}
    enough, scarce = (train(kind(most), given, **settings) for most in (10**9, fits))
    assert scarce.state.train_batch_size == 4
    assert max(scarce.model.sizes[1:]) <= fits
    assert logged(scarce, "loss") == pytest.approx(logged(enough, "loss"), abs=1e-6)
    torch.testing.assert_close(weights(scarce.model), weights(enough.model), rtol=0, atol=1e-5)
    assert "Memory ran out in step 1 with batches of 8 examples. From this step on batches have 4" in caplog.text


def without_labels(rows):
    """Joins all rows into one, and takes their labels away, as some collators change the rows that they are given."""
    labels = [row.pop("labels") for row in rows]
    return {"x": torch.cat([row["x"] for row in rows])[None], "labels": torch.tensor(labels)[None]}


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_of_a_stream_that_cannot_be_cut_are_collated_again(train, caplog, workers):
    settings = {
        "max_steps": 8, "gradient_accumulation_steps": 2, "max_grad_norm": 10.0, "learning_rate": 1e-2,
        "dataloader_num_workers": workers, "per_device_train_batch_size": 5, "remove_unused_columns": False,
    }  # fmt: skip

    class Copies(Stream):
        def __iter__(self):
            return map(dict, self.rows)

    def run(fits):
        given = {"data_collator": without_labels, "eval_dataset": None, "train_dataset": Copies(examples(37))}
        return train(Packed(fits), given, **settings)

    enough, scarce = run(10**9), run(2)
    assert scarce.state.train_batch_size == 2
    assert max(scarce.model.sizes[2:]) == 2
    assert logged(scarce, "loss") == pytest.approx(logged(enough, "loss"), abs=1e-6)
    torch.testing.assert_close(weights(scarce.model), weights(enough.model), rtol=0, atol=1e-5)
    assert "Memory ran out in step 1 with batches of 3 examples. From this step on batches have 2" in caplog.text


@pytest.mark.parametrize(("collate", "kept"), [(packed, [1, 3]), (None, [0])])
def test_a_stream_keeps_the_examples_of_an_update_that_cannot_be_cut(make_trainer, collate, kept):
    counts = set()
    given = {"train_dataset": Stream(examples(37)), "data_collator": collate}
    model = Packed() if collate else Hungry()
    trainer = make_trainer(
        {"model": model, **given}, auto_find_batch_size=True, max_steps=8, gradient_accumulation_steps=2
    )
    trainer.add_callback(callback(on_step_end=lambda **_: counts.add(len(trainer._mt_run.loader.examples))))
    trainer.train()
    assert sorted(counts) == kept  # an update's batches, and the one that is loaded ahead


class ReadsManyAtOnce(Dataset):
    """Reads rows only all at once, as a table on disk."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, row):
        raise NotImplementedError

    def __getitems__(self, rows):
        return [self.rows[row] for row in rows]


def test_rows_are_read_again_all_at_once_where_the_dataset_can(train):
    given = {"data_collator": packed, "eval_dataset": None, "train_dataset": ReadsManyAtOnce(examples(40))}
    assert train(Packed(4), given, max_steps=1).model.sizes == [8, 4, 4]


@pytest.mark.parametrize(
    ("model", "collate", "times"),
    [
        (Hungry, default_data_collator, {1: 36}),
        # the first batch a third time, to see that it can be halved, and the last one, which has only 4, once
        (Packed, packed, {3: 8, 2: 24, 1: 4}),
    ],
)
def test_batches_are_collated_again_only_where_they_cannot_be_cut_and_are_too_large(train, model, collate, times):
    collated = Counter()

    def counted(rows):
        collated.update(float(row["x"][0]) for row in rows)
        return collate(rows)

    given = {"data_collator": counted, "eval_dataset": None, "train_dataset": examples(36)}
    train(model(4), given, num_train_epochs=1)
    assert Counter(collated.values()) == times


@pytest.mark.parametrize("kind", [list, Stream])
def test_whole_batches_of_a_dataset_are_cut(train, kind):
    class LoadsBatches(Trainer):
        def get_train_dataloader(self):
            batches = [default_data_collator(examples(8)) for _ in range(3)]
            return self.accelerator.prepare(DataLoader(kind(batches), batch_size=None, collate_fn=lambda batch: batch))

    assert train(Hungry(4), {"kind": LoadsBatches}, max_steps=2).model.sizes == [8, 4, 4, 4, 4]


def test_parts_that_are_loaded_again_have_nearly_equal_sizes():
    loader = SimpleNamespace(dataset=range(100, 113), collate_fn=len)
    assert load_in_parts(loader, range(13), most=4) == [4, 3, 3, 3]


@pytest.mark.parametrize("empty", [0, 4, 8])  # images without a box in each batch, before the others
def test_losses_that_are_divided_by_boxes_are_weighted_by_boxes(train, empty):
    def collate(rows):
        counts = [1 + 2 * row["labels"] for row in rows]
        counts[:empty] = [0] * empty
        labels = [
            {"class_labels": torch.full((count,), row["labels"])} for row, count in zip(rows, counts, strict=True)
        ]
        return {"x": torch.stack([row["x"] for row in rows]), "labels": labels}

    class Detector(Hungry):
        def forward(self, x, labels=None):
            logits, classes = self.logits(x), [each["class_labels"] for each in labels]
            scores = torch.cat([row.expand(len(each), 2) for row, each in zip(logits, classes, strict=True)])
            losses = nn.functional.cross_entropy(scores, torch.cat(classes), reduction="sum") + logits.square().sum()
            return {"loss": losses / max(1, len(scores)), "logits": logits}

    given = {"data_collator": collate, "eval_dataset": None}
    enough, scarce = (train(Detector(fits), given, max_steps=3, learning_rate=1e-2) for fits in (8, 4))
    assert logged(scarce, "loss") == pytest.approx(logged(enough, "loss"), abs=1e-6)
    assert scarce.state.train_batch_size == 4


def test_loading_again_draws_no_numbers_of_the_run(train):
    def jittered(rows):
        torch.rand(())
        return packed(rows)

    def drawn(fits):
        model, draws = Packed(fits), []
        model.register_forward_pre_hook(lambda *_: draws.append(float(torch.rand(()))))
        train(model, {"data_collator": jittered, "eval_dataset": None}, max_steps=1)
        return draws

    assert drawn(10**9)[0] == drawn(4)[0] == drawn(4)[1]  # the first update, and the same again in parts


def test_a_collator_that_fails_when_loading_again_leaves_the_random_numbers(train):
    states, calls = [], []

    def fails(rows):
        torch.rand(())
        calls.append(len(rows))
        if len(rows) < 8:
            states.append(torch.get_rng_state())
            raise RuntimeError("no such batch")
        return packed(rows)

    given = {"data_collator": fails, "eval_dataset": None}
    with pytest.raises(RuntimeError, match="no such batch"):
        train(Packed(4), given, max_steps=1)
    assert not torch.equal(torch.get_rng_state(), states[0])


def test_batch_with_drawn_labels_is_not_loaded_again(train):
    calls = []

    def draws(rows):
        calls.append(len(rows))
        batch = packed(rows)
        batch["labels"][:, : len(calls) % 3] = -100
        return batch

    given = {"data_collator": draws, "eval_dataset": None}
    said = refusal(train, Packed(4), given, max_steps=1, kind=DeviceOutOfMemoryError)
    assert "it has other labels when its examples are loaded again" in said


class TakesBatches(Trainer):
    """Takes the batches of an update its own way, so it is unknown which rows they have."""

    def get_batch_samples(self, *given):
        return super().get_batch_samples(*given)


def test_packed_batch_of_unknown_rows_is_refused_unless_split_batch_is_overridden(train):
    cut = []

    class Splits(Trainer):
        def split_batch(self, batch, most):
            cut.append(most)
            x, labels = batch["x"].view(-1, 4).split(most), batch["labels"].split(most, dim=1)
            return [{"x": part.reshape(1, -1), "labels": label} for part, label in zip(x, labels, strict=True)]

    given = {"data_collator": packed, "eval_dataset": None, "train_dataset": Stream(examples(40))}
    unknown = {"kind": TakesBatches, **given}
    assert "one example" in refusal(train, Packed(4), unknown, max_steps=2, kind=DeviceOutOfMemoryError)
    for data in (given["train_dataset"], examples(40)):
        splits = {"kind": Splits, **given, "train_dataset": data}
        assert train(Packed(4), splits, max_steps=2).model.sizes == [8, 4, 4, 4, 4]
        assert cut == [4] * 3  # also where the rows are known
        cut.clear()


def test_a_repeated_update_draws_the_same_numbers_and_counts_running_means_once(train):
    draws, model = [], Hungry(4)
    model.register_buffer("batches", torch.zeros(()))

    def draw(module, given):
        module.batches += 1
        draws.append(float(torch.rand(())))

    model.register_forward_pre_hook(draw)
    train(model, max_steps=1, gradient_accumulation_steps=2)
    assert model.sizes == [8, 4, 4, 4, 4]
    assert draws[0] == draws[1]
    assert model.batches == 4


@pytest.mark.parametrize("count", [40, 36])  # the last batch of an epoch may have as many rows as others have examples
def test_batches_with_more_rows_than_examples_stay_whole(make_trainer, caplog, count):
    model, settings = Hungry(16), {"auto_find_batch_size": True, "max_steps": 8}
    given = {"kind": TakesBatches, "train_dataset": examples(count), "data_collator": pairs}
    trainer = make_trainer({"model": model, **given}, **settings)

    def limit(**_):
        trainer._mt_run.position.examples_at_a_time = 4  # a restart because of memory sets it

    trainer.add_callback(callback(on_train_begin=limit))
    trainer.train()
    assert set(model.sizes) == {16} | ({8} if count == 36 else set())
    assert caplog.text.count("stays whole") == 1
    assert "more rows than examples" in caplog.text


def test_memory_that_runs_out_with_more_rows_than_examples_ends_the_run(train):
    given = {"kind": TakesBatches, "data_collator": pairs}
    said = refusal(train, Hungry(4), given, max_steps=4, kind=DeviceOutOfMemoryError)
    assert "more rows than examples" in said


def test_override_of_split_batch_may_split_batches_with_more_rows(train):
    class Pairs(Trainer):
        def split_batch(self, batch, most):
            pairs = {name: rows.view(2, -1, *rows.shape[1:]).transpose(0, 1) for name, rows in batch.items()}
            return [{name: each[name].transpose(0, 1).flatten(0, 1) for name in each} for each in split(pairs, most)]

    model = train(Hungry(8), {"kind": Pairs, "data_collator": pairs}, max_steps=1).model
    assert model.sizes[0] == 16
    assert max(model.sizes[1:]) <= 8
