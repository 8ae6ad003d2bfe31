"""The folder that several processes write into, with the other processes played by the test."""

import threading
from types import SimpleNamespace

import pytest

from mps_trainer.checkpoints import checkpoints
from mps_trainer.checkpoints.output_folder import own_run_folder
from mps_trainer.distributed import Processes
from tests.conftest import refusal


class Two(Processes):
    """Two processes, of which the other one answers `theirs(thing)` when this one has `thing`."""

    def __init__(self, theirs) -> None:
        super().__init__(0, 2)
        self.theirs = theirs

    def first_does(self, work):
        return work()

    def gather(self, thing):
        return [thing, self.theirs(thing)]


def settings(tmp_path, **values):
    defaults = {"output_dir": str(tmp_path), "should_save": True, "fsdp": False, "fsdp_config": {}}
    return SimpleNamespace(**{**defaults, "load_best_model_at_end": False, "save_on_each_node": False, **values})


def test_a_second_run_is_refused_in_all_processes(tmp_path):
    other = Two(lambda _: "Another run is there.")
    said = refusal(own_run_folder(str(tmp_path), settings(tmp_path, should_save=False), other).__enter__)
    assert said == (
        "Another run is there. If this run wrote them, the machines share the folder: leave save_on_each_node out."
    )


SHARDED = {"fsdp": True, "fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT"}}


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (SHARDED, "and each writes its part of a checkpoint there. "),
        ({"load_best_model_at_end": True}, "and load_best_model_at_end=True has all of them read the best checkpoint"),
        ({}, None),
        ({**SHARDED, "fsdp": False}, None),
        ({**SHARDED, "fsdp_config": {"state_dict_type": "FULL_STATE_DICT"}}, None),
        ({"load_best_model_at_end": True, "save_on_each_node": True}, None),
    ],
)
def test_all_have_to_see_the_folder_only_where_all_read_or_write_it(tmp_path, values, why):
    # the other process sees another folder, and no other run in it
    entered = own_run_folder(str(tmp_path), settings(tmp_path, **values), Two({True: False, None: None}.get))
    if why is not None:
        assert why in refusal(entered.__enter__)
    else:
        with entered:
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
