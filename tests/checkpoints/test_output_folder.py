"""The folder that several processes write into, with the other processes played by the test."""

import os
import threading
from types import SimpleNamespace

import pytest

from mps_trainer import MisconfigurationException
from mps_trainer.checkpoints import checkpoints
from mps_trainer.checkpoints.output_folder import own_run_folder, require_shared
from mps_trainer.distributed import Processes
from tests.conftest import refusal

WHY = "each writes its part there"


class Played(Processes):
    """Two processes; the other one answers with `theirs`."""

    def __init__(self, rank: int = 0, *, theirs: object = None, first_did: object = None, size: int = 2) -> None:
        super().__init__(rank, size)
        self.theirs, self.first_did, self.asked = theirs, first_did, []

    def first_does(self, work):
        return work() if self.is_first else self.first_did

    def gather(self, thing):
        self.asked.append(thing)
        return [thing, self.theirs] if self.is_first else [self.theirs, thing]


@pytest.mark.parametrize("sees", [True, False])
def test_another_process_looks_for_what_the_first_one_wrote_and_leaves_it(tmp_path, sees):
    (tmp_path / "sign").touch()
    processes = Played(1, theirs=True, first_did="sign" if sees else "of another machine")
    if sees:
        require_shared(str(tmp_path), processes, WHY)
    else:
        assert refusal(require_shared, str(tmp_path), processes, WHY).startswith(
            "Process 1 does not see what process 0"
        )
    assert processes.asked == [sees]
    assert os.listdir(tmp_path) == ["sign"]


def test_a_process_that_does_not_see_what_the_first_one_writes_is_named(tmp_path):
    require_shared(str(tmp_path / "run"), Processes(), WHY)
    assert os.listdir(tmp_path) == []
    processes = Played(theirs=True)
    require_shared(str(tmp_path / "run"), processes, WHY)
    assert processes.asked == [True]
    said = refusal(require_shared, str(tmp_path / "run"), Played(theirs=False), WHY)
    assert said == (
        f"Process 1 does not see what process 0 writes into {tmp_path / 'run'}, and {WHY}. Give output_dir the path "
        "of a folder that all machines share, or train on one machine."
    )
    assert os.listdir(tmp_path / "run") == []


def settings(tmp_path, **values):
    defaults = {"output_dir": str(tmp_path), "should_save": True, "fsdp": False, "fsdp_config": {}}
    return SimpleNamespace(**{**defaults, "load_best_model_at_end": False, "save_on_each_node": False, **values})


def test_a_second_run_is_refused_in_all_processes(tmp_path):
    with own_run_folder(str(tmp_path), settings(tmp_path), Processes()):
        said = refusal(own_run_folder(str(tmp_path), settings(tmp_path), Processes()).__enter__)
        assert f"{tmp_path}" in said
        assert "the machines share" not in said
    with own_run_folder(str(tmp_path), settings(tmp_path), Processes()):  # free again
        pass
    said = refusal(
        own_run_folder(
            str(tmp_path), settings(tmp_path, should_save=False), Played(theirs="Another run is there.")
        ).__enter__
    )
    assert said == (
        "Another run is there. If this run wrote them, the machines share the folder: leave save_on_each_node out."
    )


SHARDED = {"fsdp": True, "fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT"}}


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (SHARDED, "and each writes its part of a checkpoint there. "),
        (
            {"load_best_model_at_end": True},
            "and load_best_model_at_end=True has all of them read the best checkpoint. ",
        ),
        ({}, None),
        ({**SHARDED, "fsdp": False}, None),
        ({**SHARDED, "fsdp_config": {"state_dict_type": "FULL_STATE_DICT"}}, None),
        ({"load_best_model_at_end": True, "save_on_each_node": True}, None),
    ],
)
def test_all_have_to_see_the_folder_only_where_all_read_or_write_it(tmp_path, values, why):
    class Apart(Played):
        """The other process sees another folder, and no other run in it."""

        def gather(self, thing):
            return [thing, False if isinstance(thing, bool) else None]

    if why is None:
        with own_run_folder(str(tmp_path), settings(tmp_path, **values), Apart()):
            pass
        return
    with (
        pytest.raises(MisconfigurationException, match=why),
        own_run_folder(str(tmp_path), settings(tmp_path, **values), Apart()),
    ):
        pass


@pytest.mark.parametrize("saves", [True, False])
def test_what_was_half_written_is_cleared_by_the_one_that_saves(tmp_path, saves):
    (tmp_path / "tmp-checkpoint-4").mkdir()
    with own_run_folder(str(tmp_path), settings(tmp_path, should_save=saves), Processes()):
        assert (tmp_path / "tmp-checkpoint-4").exists() is not saves


def test_a_run_waits_for_what_an_interrupted_one_still_writes(tmp_path):
    done, go_on = [], threading.Event()
    checkpoints._in_thread(lambda: done.append(go_on.wait(20)))
    threading.Timer(0.05, go_on.set).start()
    with own_run_folder(str(tmp_path), settings(tmp_path), Processes()):
        assert done == [True]
