"""Memory runs out during training: with auto_find_batch_size the run goes on, with the same updates as with enough."""

import gc
import json
import logging
import os

import pytest
import torch
from torch import nn
from transformers import TrainerCallback

from mps_trainer import Trainer
from mps_trainer.guards.out_of_memory import DeviceOutOfMemoryError
from tests.conftest import Classifier, assert_same_weights, examples, logged, weights

MESSAGES = {
    "mps": "MPS backend out of memory (MPS allocated: 1.00 GiB, other allocations: 1.00 MiB, max allowed: 1.00 GiB).",
    "cuda": "CUDA out of memory. Tried to allocate 2.00 GiB.",
    "cpu": "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
    "allocate 1 bytes. Error code 12 (Cannot allocate memory)",
}


class Raises(torch.autograd.Function):
    """The backward pass through here runs out of memory for more than `fits` rows."""

    @staticmethod
    def forward(ctx, x, fits, error):
        ctx.rows, ctx.fits, ctx.error = len(x), fits, error
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.rows > ctx.fits:
            raise ctx.error
        return gradient, None, None


class Hungry(Classifier):
    """Has memory for `fits` examples; the gradients of its head are there already when it runs out."""

    def __init__(self, fits=10**9, error=None):
        super().__init__(dropout=0.0)
        self.fits, self.error = fits, error or RuntimeError(MESSAGES["mps"])
        self.sizes = []

    def forward(self, x, labels=None):
        self.sizes.append(len(x))
        hidden = Raises.apply(torch.tanh(self.hidden(x)), self.fits, self.error)
        logits = self.head(self.norm(hidden))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def hungry(*args):
    torch.manual_seed(0)
    return Hungry(*args)


def assert_same_run(scarce, enough):
    """Asserts that two runs are equal up to rounding."""
    assert scarce.state.global_step == enough.state.global_step
    assert logged(scarce, "epoch") == logged(enough, "epoch")
    assert logged(scarce, "loss") == pytest.approx(logged(enough, "loss"), abs=1e-6)
    assert logged(scarce, "grad_norm") == pytest.approx(logged(enough, "grad_norm"), abs=1e-5)
    assert scarce.state.total_flos == enough.state.total_flos
    assert scarce.state.num_input_tokens_seen == enough.state.num_input_tokens_seen
    for name, value in weights(scarce.model).items():
        torch.testing.assert_close(value, weights(enough.model)[name], rtol=0, atol=1e-5)


@pytest.mark.every_device
@pytest.mark.parametrize(
    ("size", "accumulation", "fits", "found"), [(8, 1, 4, 4), (8, 1, 1, 1), (9, 1, 4, 3), (7, 2, 2, 2), (5, 3, 4, 3)]
)
def test_the_updates_are_those_of_a_run_with_enough_memory(make_trainer, caplog, size, accumulation, fits, found):
    settings = {
        **{"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulation},
        **{"num_train_epochs": 2, "learning_rate": 1e-2, "include_num_input_tokens_seen": "all"},
    }
    enough = make_trainer({"model": hungry()}, **settings)
    enough.train()
    scarce = make_trainer({"model": hungry(fits)}, auto_find_batch_size=True, **settings)
    with caplog.at_level(logging.WARNING, logger="mps_trainer"):
        scarce.train()
    assert_same_run(scarce, enough)
    assert scarce.state.train_batch_size == found <= fits
    lines = [record.getMessage() for record in caplog.records if "Memory ran out" in record.getMessage()]
    halvings = [size]
    while halvings[-1] > fits:
        halvings.append(-(-halvings[-1] // 2))
    assert [f"{before} examples" in line for before, line in zip(halvings, lines, strict=False)] == [True] * len(lines)
    assert len(lines) == len(halvings) - 1
    assert all("step 1 " in line for line in lines)


@pytest.mark.parametrize("kind", MESSAGES)
def test_every_allocators_way_to_say_it_is_understood(make_trainer, kind):
    error = torch.OutOfMemoryError(MESSAGES[kind]) if kind == "cuda" else RuntimeError(MESSAGES[kind])
    trainer = make_trainer({"model": hungry(4, error)}, auto_find_batch_size=True, max_steps=2)
    trainer.train()
    assert trainer.state.global_step == 2
    assert trainer.model.sizes == [8, 4, 4, 4, 4]


def test_only_the_update_that_failed_is_begun_again(make_trainer):
    class Grows(Hungry):
        """From the fourth batch on there is less memory."""

        def forward(self, x, labels=None):
            self.fits = 8 if len(self.sizes) < 3 else 4
            return super().forward(x, labels)

    torch.manual_seed(0)
    trainer = make_trainer({"model": Grows()}, auto_find_batch_size=True, max_steps=5)
    trainer.train()
    assert trainer.model.sizes == [8, 8, 8, 8, 4, 4, 4, 4]


def test_a_last_batch_that_is_small_already_is_halved_all_the_same(make_trainer):
    class EndsScarce(Hungry):
        def forward(self, x, labels=None):
            self.fits = 8 if len(x) == 8 else 1
            return super().forward(x, labels)

    torch.manual_seed(0)
    trainer = make_trainer(
        {"model": EndsScarce(), "train_dataset": examples(11)}, auto_find_batch_size=True, num_train_epochs=1
    )
    trainer.train()
    assert trainer.model.sizes == [8, 3, 2, 1, 1, 1]


def test_what_an_update_had_counted_before_it_failed_is_not_counted_twice(make_trainer):
    class Reads(Hungry):
        """Runs out of memory at the second of the batches that make an update."""

        main_input_name = "x"

        def __init__(self, scarce):
            super().__init__()
            self.scarce = scarce

        def num_parameters(self, exclude_embeddings=True):
            return 10

        def forward(self, x, labels=None):
            self.fits = 4 if self.scarce and len(self.sizes) == 1 else 8
            return super().forward(x, labels)

    made = []
    for scarce in (False, True):
        torch.manual_seed(0)
        trainer = make_trainer(
            {"model": Reads(scarce)},
            **{"auto_find_batch_size": True, "gradient_accumulation_steps": 2, "max_steps": 2},
            include_num_input_tokens_seen="all",
        )
        trainer.train()
        made.append(trainer)
    assert made[1].model.sizes == [8, 8, *[4] * 8]
    assert made[1].state.total_flos > 0
    assert made[1].state.num_input_tokens_seen > 0
    assert_same_run(made[1], made[0])


def test_token_normalised_losses_and_ignored_labels_weigh_as_before(make_trainer):
    """Rows with 0 to 3 labels that count, whose halves have unequal numbers of them, or none."""

    class Tagger(Hungry):
        def forward(self, x, labels=None):
            self.sizes.append(len(x))
            hidden = Raises.apply(torch.tanh(self.hidden(x)), self.fits, self.error)
            logits = self.head(self.norm(hidden))
            return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}

    generator = torch.Generator().manual_seed(1)
    rows = []
    for i in range(32):
        labels = torch.randint(0, 2, (3,), generator=generator)
        labels[: (0, 3, 1, 3)[i % 4] if i < 24 else 3 * (i % 2)] = -100
        rows.append({"x": torch.randn(3, 4, generator=generator), "labels": labels})
    made = []
    for fits in (100, 3, 1):
        torch.manual_seed(0)
        trainer = make_trainer(
            {"model": Tagger(fits), "train_dataset": rows, "eval_dataset": None},
            **{"auto_find_batch_size": True, "gradient_accumulation_steps": 2, "learning_rate": 1e-2},
            **{"num_train_epochs": 1, "per_device_train_batch_size": 6},
        )
        trainer.train()
        made.append(trainer)
    for trainer in made[1:]:
        assert_same_run(trainer, made[0])


def test_a_loss_of_ones_own_that_is_normalised_over_the_update(make_trainer):
    def loss(outputs, labels, num_items_in_batch):
        return nn.functional.cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch

    class Logits(Hungry):
        def forward(self, x):
            self.sizes.append(len(x))
            return {"logits": self.head(self.norm(Raises.apply(torch.tanh(self.hidden(x)), self.fits, self.error)))}

    made = []
    for fits in (100, 3):
        torch.manual_seed(0)
        trainer = make_trainer(
            {"model": Logits(fits), "compute_loss_func": loss, "eval_dataset": None},
            **{"auto_find_batch_size": True, "max_steps": 4, "label_names": ["labels"], "learning_rate": 1e-2},
            remove_unused_columns=False,
        )
        trainer.train()
        made.append(trainer)
    assert_same_run(made[1], made[0])


@pytest.mark.every_device(same_draws_as_cpu=True)
def test_a_resumed_run_begins_with_the_size_that_was_found(make_trainer):
    settings = {
        **{"auto_find_batch_size": True, "max_steps": 6, "learning_rate": 1e-2, "save_strategy": "steps"},
        **{"save_steps": 2, "gradient_accumulation_steps": 2},
    }
    whole = make_trainer({"model": hungry(3)}, **settings)
    whole.train()
    checkpoint = os.path.join(whole.args.output_dir, "checkpoint-2")
    with open(os.path.join(checkpoint, "trainer_state.json")) as file:
        assert json.load(file)["train_batch_size"] == 2
    resumed = make_trainer({"model": hungry(3)}, **settings)
    resumed.train(resume_from_checkpoint=checkpoint)
    assert max(resumed.model.sizes) == 2
    assert_same_weights(weights(resumed.model), weights(whole.model))
    assert logged(resumed, "loss") == logged(whole, "loss")
    assert resumed.state.train_batch_size == 2


class Samples(TrainerCallback):
    """Has memory at the end of a step beside `fits` examples."""

    def __init__(self, fits):
        self.fits, self.told = fits, []

    def on_step_end(self, args, state, control, **kwargs):
        self.told.append((state.global_step, state.train_batch_size))
        if state.train_batch_size > self.fits:
            raise RuntimeError(MESSAGES["mps"])


def test_a_callback_that_runs_out_of_memory_is_told_again_and_those_before_it_are_not(make_trainer, caplog):
    settings = {"max_steps": 2, "learning_rate": 1e-2}
    enough = make_trainer({"model": hungry()}, **settings)
    enough.train()
    callbacks = [Samples(8), Samples(2), Samples(8)]
    scarce = make_trainer({"model": hungry(), "callbacks": callbacks}, auto_find_batch_size=True, **settings)
    with caplog.at_level(logging.WARNING, logger="mps_trainer"):
        scarce.train()
    before, hungry_one, after = (callback.told for callback in callbacks)
    assert before == [(1, 8), (2, 2)]
    assert hungry_one == [(1, 8), (1, 4), (1, 2), (2, 2)]
    assert after == [(1, 2), (2, 2)]
    assert scarce.model.sizes == [8, 2, 2, 2, 2]
    assert_same_run(scarce, enough)
    lines = [record.getMessage() for record in caplog.records if "Memory ran out" in record.getMessage()]
    assert ["in step 1 with batches of 8 " in lines[0], "in step 1 with batches of 4 " in lines[1], len(lines)] == [
        True,
        True,
        2,
    ]


@pytest.mark.parametrize("raised", [RuntimeError(MESSAGES["mps"]), RuntimeError("another reason")])
def test_a_callback_that_fails_beside_a_single_example_or_for_another_reason_ends_the_run(make_trainer, raised):
    class Fails(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            raise raised

    trainer = make_trainer({"callbacks": [Fails()]}, auto_find_batch_size=True, max_steps=2)
    out = "out of memory" in str(raised)
    with pytest.raises(DeviceOutOfMemoryError if out else RuntimeError, match="one example" if out else "another"):
        trainer.train()
    assert trainer.state.global_step == 1


def test_the_size_that_was_found_can_be_asked_for_after_the_run(make_trainer):
    settings = {"auto_find_batch_size": True, "max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    trainer = make_trainer({"model": hungry(4)}, **settings)
    trainer.train()
    assert trainer._train_batch_size == trainer.state.train_batch_size == 4
    resumed = make_trainer({"model": hungry(4)}, **settings)
    assert resumed._train_batch_size == 8
    resumed.train(resume_from_checkpoint=True)
    assert resumed._train_batch_size == 4


def test_the_next_run_begins_with_what_the_arguments_say(make_trainer):
    trainer = make_trainer({"model": hungry(4)}, auto_find_batch_size=True, max_steps=1)
    trainer.train()
    trainer.model.fits, trainer.model.sizes = 8, []
    trainer.train()
    assert trainer.model.sizes == [8]


def test_float16_and_its_scaler_go_on(mps, make_trainer):
    made = []
    for fits in (100, 4):
        trainer = make_trainer({"model": hungry(fits)}, auto_find_batch_size=True, fp16=True, max_steps=4)
        trainer.train()
        made.append(trainer)
    assert [t._mt_precision.scaler.get_scale() for t in made] == [made[0]._mt_precision.scaler.get_scale()] * 2
    assert logged(made[1], "loss") == pytest.approx(logged(made[0], "loss"), abs=2e-3)  # of float16


class Wide(nn.Module):
    """Takes a megabyte for each example."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 2**16)
        self.head = nn.Linear(2**16, 2)

    def forward(self, x, labels=None):
        logits = self.head(torch.tanh(self.up(x)))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.every_device(memory="24MB")
def test_a_device_that_is_too_small_trains_on_as_one_that_is_not(device, make_trainer):
    gc.collect()
    made = []
    for size, accumulation in ((32, 1), (16, 2)):
        torch.manual_seed(0)
        trainer = make_trainer(
            {"model": Wide()},
            **{"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulation},
            **{"auto_find_batch_size": True, "max_steps": 3, "learning_rate": 1e-3},
        )
        trainer.train()
        made.append(trainer)
        trainer.model.cpu()
        del trainer.optimizer
    first, second = made
    assert first.state.train_batch_size == (32 if device == "cpu" else 16)
    assert second.state.train_batch_size == 16
    assert logged(first, "loss") == pytest.approx(logged(second, "loss"), abs=1e-5)


def test_a_batch_that_cannot_be_split_says_so_and_can_be_split_by_ones_own_method(make_trainer):
    def collate(rows):
        """All rows in one long one, with where each begins: nothing that could be cut in the first dimension."""
        return {
            "x": torch.cat([row["x"] for row in rows])[None],
            "labels": torch.tensor([row["labels"] for row in rows])[None],
        }

    class Packed(Hungry):
        def forward(self, x, labels=None):
            return super().forward(x.view(-1, 4), labels.view(-1))

    class Splits(Trainer):
        def split_batch(self, batch, most):
            x, labels = batch["x"].view(-1, 4).split(most), batch["labels"].split(most, dim=1)
            return [{"x": part.reshape(1, -1), "labels": label} for part, label in zip(x, labels, strict=True)]

    made = {"data_collator": collate, "eval_dataset": None}
    torch.manual_seed(0)
    with pytest.raises(DeviceOutOfMemoryError, match="cannot split the batch: it has one example"):
        make_trainer({"model": Packed(4), **made}, auto_find_batch_size=True, max_steps=2).train()
    torch.manual_seed(0)
    trainer = make_trainer({"model": Packed(4), "kind": Splits, **made}, auto_find_batch_size=True, max_steps=2)
    trainer.train()
    assert trainer.model.sizes == [8, 4, 4, 4, 4]
