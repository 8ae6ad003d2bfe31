"""Tests the position of a run without a Trainer: epochs, updates, saving, resuming and undoing."""

import itertools
import json
import random

import pytest
import torch
from torch.utils.data import DataLoader
from transformers.trainer_callback import TrainerState

from mps_trainer.data.epoch_loader import prepare_loader
from mps_trainer.data.plan import StepPlan
from mps_trainer.distributed import Processes
from mps_trainer.loop.batch_source import BatchSource
from mps_trainer.loop.meter import LossMeter
from mps_trainer.loop.position import Position, Update
from mps_trainer.training_args import TrainingArguments
from tests.checkpoints.test_rng import generators_as_before  # noqa: F401

BATCHES, ACCUMULATION, EPOCHS = 5, 2, 3  # so an epoch has updates of 2, 2 and 1 batches


def noisy(rows):
    return [row + random.random() for row in rows]


def position_of(step=0, cut=None, **settings) -> Position:
    loader = DataLoader(range(2 * BATCHES), 2, shuffle=True, collate_fn=noisy)
    source = BatchSource(prepare_loader(loader, TrainingArguments(use_cpu=True), Processes()))
    plan = StepPlan.make(BATCHES, ACCUMULATION, -1, EPOCHS)
    meter = LossMeter(torch.device("cpu"), skip_nonfinite=True)
    given = {} if cut is None else {"is_epoch_cut": lambda: bool(cut)}
    return Position(plan, TrainerState(global_step=step), meter, source, **given, **settings)


def next_update(position: Position, batches) -> Update | None:
    position.source.record_before_batches(True)
    count = position.plan.batches_in_update(position.batches, ACCUMULATION)
    group = list(itertools.islice(batches, count))
    if (update := position.advance(group, None)) is not None:
        position.meter.add(torch.tensor(random.random()), position.state.global_step)  # training draws, too
        position.state.global_step += 1
    return update


def run(position: Position, stop: int) -> list[Update]:
    """Trains up to step `stop`, and returns the updates."""
    updates = []
    for _ in position.epochs():
        with position.beginning_epoch():
            random.random()  # a callback
        batches = None
        while position.has_updates_left():
            if batches is None:
                batches = iter(position.begin_pass(ACCUMULATION))
            updates.append(next_update(position, batches))
            if position.state.global_step == stop:
                return updates
        position.epoch_has_ended = True
    return updates


def test_a_run_has_the_updates_of_its_plan():
    updates = run(position_of(), -1)
    assert [(each.epoch, each.first_batch, len(each.batches)) for each in updates] == [
        (epoch, first, count) for epoch in range(EPOCHS) for first, count in ((0, 2), (2, 2), (4, 1))
    ]


@pytest.mark.parametrize("stop", range(1, 9))
def test_a_position_that_is_saved_and_loaded_has_the_same_updates_and_draws(stop):
    random.seed(1)
    whole = position_of()
    done = run(whole, -1)
    expected = random.random(), whole.meter.state_dict(None)
    random.seed(1)
    first = position_of()
    assert run(first, stop) == done[:stop]
    saved = first.state_dict()
    saved["loop"] = json.loads(json.dumps(saved["loop"]))
    random.seed(2)
    again = position_of(stop)
    again.load_state_dict(saved)
    assert run(again, -1) == done[stop:]
    assert (random.random(), again.meter.state_dict(None)) == expected
    assert again.first_step == stop


@pytest.mark.parametrize(("cut", "place"), [(False, (0, 2)), (True, (1, 0))])
def test_an_epoch_that_a_callback_has_cut_is_over(cut, place):
    first = position_of(cut=cut)
    run(first, 1)
    again = position_of(1)
    again.load_state_dict(first.state_dict())
    assert (again.epoch, again.batches) == place


def test_an_epoch_whose_data_is_not_skipped_begins_again():
    first = position_of()
    run(first, 2)
    again = position_of(2, ignores_data=True)
    again.load_state_dict(first.state_dict())
    assert [(each.epoch, each.first_batch) for each in run(again, 4)] == [(0, 0), (0, 2)]


def test_an_update_that_is_undone_is_loaded_again_by_the_run_that_resumes():
    random.seed(1)
    expected = run(position_of(), 3)
    random.seed(1)
    position = position_of()
    run(position, 1)
    place = position.epoch, position.batches, position.epoch_has_ended
    logs = position.state.log_history = [{"step": 1}]
    saved = position.snapshot(before_loading=True)
    batches = position.source._batches
    position.loader_has_ended = True
    next_update(position, batches)
    logs.append({"step": 2})
    position.state.num_input_tokens_seen, position.state.global_step = 7, 1
    position.restore(saved)
    assert (position.epoch, position.batches, position.epoch_has_ended) == place
    assert (position.state.num_input_tokens_seen, logs, position.loader_has_ended) == (0, [{"step": 1}], False)
    again = position_of(1)
    again.load_state_dict(position.state_dict())
    assert run(again, 3) == expected[1:]


def test_an_epoch_without_its_first_batch_has_not_begun():
    position = position_of()
    position.epoch_has_ended = False
    assert position.snapshot(before_loading=True)["place"] == (0, 0, True, False)
    assert position.snapshot()["place"] == (0, 0, False, False)
    random.seed(3)
    expected = random.random()
    random.seed(3)
    position.begin_pass(1)
    random.random()
    position.withdraw_epoch()
    assert (position.epoch_has_ended, random.random()) == (True, expected)


def test_a_loader_that_gives_no_more_ends_the_epoch():
    position = position_of()
    assert position.advance([], None) is None
    assert position.loader_has_ended
    assert position.advance([[1]], 4) == Update([[1]], 4, 0, 0)
    assert not position.loader_has_ended
    assert position.progress == pytest.approx(1 / BATCHES)


@pytest.mark.parametrize("examples", [None, 4])
def test_the_examples_that_fit_are_saved_by_a_run_that_may_split_batches(examples):
    assert "examples_at_a_time" not in position_of().state_dict()["loop"]
    position = position_of(splits_batches=True, examples_at_a_time=examples)
    assert position.state_dict()["loop"]["examples_at_a_time"] == examples
