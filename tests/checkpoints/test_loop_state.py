"""A run resumes at its position in a checkpoint of another number of processes, and of version 0.1."""

import json

import pytest
import torch

from mps_trainer.checkpoints.loading import read_position
from mps_trainer.checkpoints.rng import rng_state


def position(sum):
    return {"sum": sum, "total": 6.0, "first_step": 0, "last_read_step": 4}


@pytest.fixture(params=["now", "0.1"])
def write(request, tmp_path):
    """Returns a function that writes the positions of the processes into the folder that it returns."""

    def write(*positions):
        if request.param == "now":
            (tmp_path / "loop_state.json").write_text(json.dumps({"processes": positions}))
        for rank, each in enumerate(positions):
            name = "rng_state.pth" if len(positions) == 1 else f"rng_state_{rank}.pth"
            torch.save({**rng_state(), **({"loop": each} if request.param == "0.1" else {})}, tmp_path / name)
        return str(tmp_path)

    return write


@pytest.mark.parametrize(
    ("rank", "size", "expected"), [(0, 1, 2.0), (0, 2, 1.0), (1, 2, 3.0), (0, 4, 2.0), (3, 4, 2.0)]
)
def test_the_loss_since_the_last_log_is_the_mean_of_those_who_made_it(write, caplog, rank, size, expected):
    assert read_position(write(position(1.0), position(3.0)), rank, size) == position(expected)
    assert caplog.messages == []


@pytest.mark.parametrize(("rank", "size"), [(0, 1), (1, 2)])
def test_several_processes_go_on_from_the_position_of_one(write, rank, size):
    exact = {
        **position(0.1),
        "total": float("inf"),
        "epoch": 1,
        "batches": 2,
        "epoch_has_ended": False,
        "postponed": ["save"],
    }
    assert read_position(write(exact), rank, size) == exact


def test_what_a_signal_postponed_in_version_0_1_is_done(tmp_path):
    saved = {"sum": 0.0, "total": 0.0, "first_step": 0, "last_read_step": 0, "due": ["evaluate"]}
    torch.save({**rng_state(), "loop": saved}, tmp_path / "rng_state.pth")
    assert read_position(str(tmp_path))["postponed"] == ["evaluate"]


def test_a_checkpoint_of_transformers_has_no_position(tmp_path):
    assert read_position(str(tmp_path)) == {}
    torch.save(rng_state(), tmp_path / "rng_state.pth")
    assert read_position(str(tmp_path)) == {}
