"""A run resumes at its position in a checkpoint of another number of processes."""

import pytest
import torch

from mps_trainer.checkpoints.run_files import position_of_all
from mps_trainer.random_state import rng_state


def position(sum):
    return {"sum": sum, "total": 6.0, "first_step": 0, "last_read_step": 4}


@pytest.fixture
def made_by_two(tmp_path):
    for rank, sum in enumerate((1.0, 3.0)):
        torch.save({**rng_state(), "loop": position(sum)}, tmp_path / f"rng_state_{rank}.pth")
    return str(tmp_path)


@pytest.mark.parametrize(("size", "expected"), [(1, 2.0), (2, 1.0), (4, 2.0)])
def test_the_loss_since_the_last_log_is_the_mean_of_those_who_made_it(made_by_two, size, expected):
    found = position_of_all({**rng_state(), "loop": position(1.0)}, made_by_two, size)
    assert found == position(expected)
