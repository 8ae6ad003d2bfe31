"""The batches of an evaluation in one process; several are in tests/distributed."""

from mps_trainer.distributed import Processes
from mps_trainer.evaluation.batches import in_step, with_last


def test_one_process_alone_has_its_batches_and_no_others():
    assert list(in_step([1, 2], Processes())) == [(1, True), (2, True)]
    assert list(in_step([], Processes())) == []


def test_the_last_batch_is_known_while_it_is_worked_on():
    assert list(with_last("abc")) == [("a", False), ("b", False), ("c", True)]
