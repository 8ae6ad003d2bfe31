"""Tests the random states of a run: in a checkpoint, in a snapshot, and how a resumed run restores them."""

import random

import pytest
import torch
from torch.utils.data import DataLoader

from mps_trainer.checkpoints.rng import BEFORE_EPOCH, BEFORE_WAITING, rng_state, set_rng
from mps_trainer.data.epoch_loader import PrefetchIterator, prepare_loader
from mps_trainer.distributed import Processes
from mps_trainer.loop.batch_source import BatchSource
from mps_trainer.training_args import TrainingArguments
from tests.checkpoints.test_rng import generators_as_before  # noqa: F401


def noisy(rows):
    return [row + random.random() for row in rows]


def loader(**settings):
    return DataLoader(range(12), batch_size=2, collate_fn=noisy, **settings)


def prepared(**settings):
    return prepare_loader(loader(**settings), TrainingArguments(use_cpu=True), Processes())


def source_of(data, saved=None, load_rng=None) -> BatchSource:
    source = BatchSource(data)
    if saved is not None:
        source.load_state_dict(saved, load_rng)
    return source


def fail(*_):
    raise ZeroDivisionError


def state_after(seed) -> dict:
    random.seed(seed)
    return rng_state()


def test_epoch_whose_first_batch_failed_has_drawn_nothing():
    source = source_of(loader())
    source.restore_epoch_start()  # nothing was begun
    random.seed(4)
    source.begin_pass(0, 0, 1)
    expected = random.random()
    source.restore_epoch_start()
    assert random.random() == expected


def test_states_of_loading_serve_their_own_epoch_alone():
    kept = state_after(4)
    saved = {**state_after(9), BEFORE_EPOCH: kept, BEFORE_WAITING: None}
    expected = random.random()
    source = source_of(loader(), saved)
    list(source.begin_pass(1, 0, 1))  # from its start: another epoch
    source.restore_epoch_start()
    assert random.random() == expected


def test_random_states_are_restored_at_once_and_kept_from_what_is_repeated():
    saved = state_after(3)
    expected = [random.random() for _ in range(2)]
    random.seed(8)
    source = source_of(loader(), saved)
    with source.rng_restored_if_resumed():
        assert random.random() == expected[0]
    drawn = [random.random()]
    with pytest.raises(ZeroDivisionError), source.rng_restored_if_resumed():
        fail(random.seed(5))
    assert [*drawn, random.random()] == expected


def test_a_run_that_has_not_resumed_keeps_all_draws():
    without_states = source_of(loader())
    without_states.load_state_dict(None)
    random.seed(3)
    expected = [random.random() for _ in range(2)]
    random.seed(3)
    for source in (source_of(loader()), without_states):
        with source.rng_restored_if_resumed():
            assert random.random() == expected.pop(0)


class TestLoadingAgain:
    """An epoch of 6 batches that is resumed after 2."""

    @staticmethod
    def trained(source, batches, left):
        """Returns the batches and the draws of training that is done in turn with loading."""
        return [(next(batches), random.random()) for _ in range(left)]

    @pytest.mark.parametrize("make", [loader, prepared])
    @pytest.mark.parametrize("recorded", [True, False])
    def test_batches_and_draws_are_those_of_the_run_that_was_left_alone(self, make, recorded):
        random.seed(1)
        torch.manual_seed(1)
        source = source_of(make(shuffle=True))
        batches = source.begin_pass(0, 0, 1)
        source.record_before_batches(recorded)
        self.trained(source, batches, 2)
        saved, expected = source.state_dict(), self.trained(source, batches, 4)
        torch.manual_seed(7)
        again = source_of(make(shuffle=True), saved)
        batches = again.begin_pass(0, 2, 1)
        again.record_before_batches(recorded)
        assert self.trained(again, batches, 4) == expected

    def test_a_batch_ahead_whose_draws_were_not_recorded_draws_nothing_of_what_follows(self):
        def late(rows):
            return noisy(rows) if rows[0] > 0 else rows

        random.seed(1)
        source = source_of(data := prepared())
        data.collate_fn = late
        batches = source.begin_pass(0, 0, 1)
        trained = self.trained(source, batches, 1)
        source.record_before_batches(False)
        trained += self.trained(source, batches, 1)
        saved, expected = source.state_dict(), self.trained(source, batches, 4)
        assert BEFORE_WAITING not in saved
        again = source_of(data, saved)
        found = self.trained(again, again.begin_pass(0, 2, 1), 4)
        assert found[0][1:] == expected[0][1:]
        assert found[1:] == expected[1:]

    @pytest.mark.parametrize("count", [1, 3])
    def test_after_a_checkpoint_of_transformers_the_first_update_is_loaded_with_earlier_states(self, count):
        saved = state_after(9)
        expected = random.random()
        random.seed(4)
        loaded = list(loader())  # 6 batches
        random.seed(4)
        source = source_of(loader(), saved)
        batches = source.begin_pass(0, 2, count)
        first = [next(batches) for _ in range(count)]
        assert random.random() == expected
        assert [[int(number) for number in batch] for batch in first] == [
            [int(number) for number in batch] for batch in loaded[2 : 2 + count]
        ]
        random.seed(4)
        assert first == [noisy([2 * number, 2 * number + 1]) for number in range(2, 2 + count)]
        assert len(list(batches)) == 4 - count

    def test_an_error_leaves_the_states_of_loading_for_a_checkpoint(self):
        of_epoch, waiting = state_after(2), state_after(5)
        saved = {**state_after(9), BEFORE_EPOCH: of_epoch, BEFORE_WAITING: waiting}
        expected = random.random()
        data = prepared()
        data.collate_fn = fail
        source = source_of(data, saved)
        with pytest.raises(ZeroDivisionError):
            source.begin_pass(0, 2, 1)
        assert source.state_dict()[BEFORE_WAITING] is waiting
        assert random.random() == expected


def test_an_override_that_sets_random_states_is_called_once_and_the_loaders_own_generator_is_restored():
    data = loader(shuffle=True, generator=torch.Generator().manual_seed(3))
    saved = source_of(data).state_dict()
    random.seed(6)
    expected = random.random()
    data.generator.manual_seed(4)
    calls = []
    source = source_of(data, saved, lambda: calls.append(random.seed(6)))
    assert random.random() == expected
    assert data.generator.initial_seed() == 3
    with source.rng_restored_if_resumed():
        list(source.begin_pass(0, 0, 1))
    assert data.generator.initial_seed() == 3
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("workers", "saved", "is_told"),
    [
        (1, {BEFORE_EPOCH: rng_state(), BEFORE_WAITING: None}, True),
        (0, {BEFORE_EPOCH: rng_state()}, False),
        (1, {}, False),
    ],
)
def test_loading_batches_again_for_workers_is_logged(caplog, workers, saved, is_told):
    caplog.set_level("INFO", logger="mps_trainer.loop.batch_source")
    source = source_of(loader(num_workers=workers), {**rng_state(), **saved})
    source.begin_pass(0, 3, 1)
    told = "Loading the first 3 batches of the epoch again to restore the random state of the workers."
    assert caplog.messages == ([told] if is_told else [])


def test_a_snapshot_of_loading_begins_the_pass_again():
    source = source_of(prepared(shuffle=True))
    random.seed(2)
    batches = source.begin_pass(0, 0, 1)
    source.record_before_batches(True)
    next(batches)
    saved = source.snapshot(with_loading=True)
    expected = random.random()
    source.restore(saved, with_loading=True)
    assert random.random() == expected
    assert list(batches) == []
    assert source.state_dict()[BEFORE_WAITING] is saved[BEFORE_WAITING]
    set_rng(saved)


def test_a_pass_whose_batches_cannot_be_loaded_again_is_known_and_the_saved_states_stay(monkeypatch):
    saved = {**state_after(9), BEFORE_EPOCH: state_after(4), BEFORE_WAITING: state_after(5)}
    source = source_of(prepared(), saved)
    told = []
    monkeypatch.setattr("mps_trainer.loop.batch_source.explain_worker", lambda error, batches: told.append(batches))
    monkeypatch.setattr(PrefetchIterator, "load_ahead", fail)
    with pytest.raises(ZeroDivisionError):
        source.begin_pass(0, 2, 1)
    source.explain(RuntimeError())
    assert isinstance(told[0], PrefetchIterator)
    assert source.state_dict()[BEFORE_EPOCH] is saved[BEFORE_EPOCH]
