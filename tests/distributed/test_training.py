"""Several processes train as one does with batches as large as all of theirs."""

import socket

import numpy as np
import pytest

from tests.distributed.conftest import assert_evaluated_alike, assert_resumed_exactly, assert_trained_alike
from tests.distributed.scenarios import ALIKE

HOST = socket.gethostname()
EVALUATIONS = ["evaluation", "evaluation_sorted_by_length", "evaluation_of_a_stream", "metrics_batch_by_batch"]
ON_GLOO = ["evaluation_of_seven_full_batches", "evaluation_by_a_loader_that_divides", "steps_of_an_evaluation"]


@pytest.mark.parametrize("name", ALIKE)
def test_two_processes_train_as_one(made_by, alone, name):
    assert_trained_alike(alone(name), made_by(2)(name))


@pytest.mark.parametrize("name", [*EVALUATIONS, *ON_GLOO])
def test_every_way_to_evaluate_gives_what_one_process_gives_to_the_last_digit(made_by, alone, name):
    assert_evaluated_alike(made_by(2)(name), alone(name))


@pytest.mark.parametrize("kind", ["stream", "sampler", "shuffled"])
def test_an_epoch_has_each_example_once_if_its_order_is_drawn(made_by, kind):
    first, second = (made[kind] for made in made_by(2)("orders_that_are_drawn"))
    for epoch in (slice(20), slice(20, 40)):
        assert len({*first[epoch], *second[epoch]}) == 40


def test_a_resumed_run_is_equal_in_every_bit(made_by):
    for made in made_by(2)("a_run_resumed_in_an_epoch"):
        assert_resumed_exactly(made["whole"], made["again"])


def test_the_first_process_writes_and_each_ones_generators_are_kept(made_by, alone):
    one = alone("checkpoints")["files"]
    both = [made["files"] for made in made_by(2)("checkpoints")]
    generators = [f"checkpoint-{step}/rng_state_{rank}.pth" for step in (8, 12) for rank in (0, 1)]
    assert [file for file in both[0] if "rng_state" not in file] == [file for file in one if "rng_state" not in file]
    assert sorted(file for file in both[0] if "rng_state" in file) == sorted(generators)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a_checkpoint_that_is_not_there", "checkpoint-99: there is no such folder"),
        ("data_of_another_size", f"among the processes: 40 in process 0 on {HOST}, 41 in process 1 on {HOST}."),
        ("folders_of_their_own", "Process 1 does not see what process 0 writes into"),
        ("another_run_in_the_folder", "is training into"),
        ("a_stream_split_by_node", "Leave split_dataset_by_node() out"),
        ("a_loss_that_is_infinite_in_one_process", "The loss was inf at step 1 (learning rate 0.01, row"),
    ],
)
def test_all_processes_are_told_what_is_refused(made_by, name, said):
    for made in made_by(2)(name):
        assert said in made["said"]
        assert not made.get("left")


def test_four_processes_train_as_one_and_go_on_from_two(made_by_four, alone):
    for name in ("the_end_of_an_epoch_is_uneven", "the_end_of_an_epoch_is_one_example"):
        assert_trained_alike(alone(name), made_by_four(name))
    assert_evaluated_alike(made_by_four("evaluation"), alone("evaluation"))
    whole, one = alone("checkpoints"), alone("from_two_processes")
    for resumed in [*made_by_four("from_two_processes"), one]:
        assert resumed["steps"] == whole["steps"]
        np.testing.assert_allclose(resumed["losses"], whole["losses"], atol=1e-5, rtol=0)
