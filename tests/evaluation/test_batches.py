"""The batches of an evaluation in one process; several are in tests/distributed."""

from __future__ import annotations

from types import SimpleNamespace

from mps_trainer.distributed import Processes
from mps_trainer.evaluation.batches import in_step, watching_for_last


def test_one_process_alone_has_its_batches_and_no_others():
    assert list(in_step([1, 2], Processes())) == [(1, True), (2, True)]
    assert list(in_step([], Processes())) == []


def test_the_last_batch_is_known_while_it_is_worked_on():
    state = SimpleNamespace(end_of_dataloader=True)
    assert [(batch, state.end_of_dataloader) for batch in watching_for_last("abc", state)] == [
        ("a", False),
        ("b", False),
        ("c", True),
    ]
