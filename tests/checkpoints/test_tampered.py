"""Checkpoints that somebody edited: each is resumed from or refused in one line, and nothing saved is touched."""

import json
import os
import re
from pathlib import Path

import pytest
import torch

from mps_trainer.checkpoints import manifest
from mps_trainer.checkpoints.resume import requested_checkpoint
from tests.conftest import refusal

STATE, OPTIMIZER, RNG, WEIGHTS = "trainer_state.json", "optimizer.pt", "rng_state.pth", "model.safetensors"
LOOP = "loop_state.json"
HUGE = 10**400
REMOVED = object()


@pytest.fixture
def saved(saved):
    """A checkpoint without the manifest that would catch each change."""
    os.remove(os.path.join(saved, manifest.NAME))
    return saved


@pytest.fixture
def refused(make_trainer, saved):
    def refuse(trainer=None, **settings):
        before = contents(saved)
        said = refusal(make_trainer(trainer, max_steps=4, **settings).train, resume_from_checkpoint=saved)
        assert contents(saved) == before
        return said

    return refuse


def contents(folder):
    paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    return {path: manifest.checksum(path) for path in paths if os.path.isfile(path)}


def edit_json(folder, name=STATE, change=id, **values):
    path = Path(folder, name)
    content = {**json.loads(path.read_text()), **values}
    change(content)
    path.write_text(json.dumps(content))


def edit_tensors(folder, name, change):
    path = os.path.join(folder, name)
    held = torch.load(path, weights_only=False)
    change(held)
    torch.save(held, path)


def put(*path, value):
    """Puts `value` where the keys in `path` lead."""

    def change(held):
        *way, last = path
        for key in way:
            held = held[key]
        if value is REMOVED:
            del held[last]
        else:
            held[last] = value

    return change


@pytest.fixture(params=["now", "0.1"])
def edit_position(request, saved):
    """Returns a function that edits the loop's position in the checkpoint and returns the name of its file."""
    with open(os.path.join(saved, LOOP)) as file:
        [position] = json.load(file)["processes"]
    if request.param == "0.1":
        os.remove(os.path.join(saved, LOOP))

    def edit(change):
        change(position)
        if request.param == "0.1":
            edit_tensors(saved, RNG, put("loop", value=position))
            return RNG
        edit_json(saved, LOOP, processes=[position])
        return LOOP

    return edit


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epoch", HUGE),
        ("batches", 1.5),
        ("batches", REMOVED),
        ("postponed", ["delete"]),
        ("epoch_has_ended", "no"),
        ("accumulation", 0),
        ("examples_at_a_time", 0),
        ("sum", True),
        ("first_step", -1),
        ("last_read_step", float("nan")),
    ],
    ids=lambda value: f"{value!s:.12}",
)
def test_a_loop_position_of_the_wrong_type_is_refused(refused, edit_position, name, value):
    edited = edit_position(put(name, value=value))
    message = refused(auto_find_batch_size=True)
    assert f"{edited} is damaged" in message
    assert name in message


@pytest.mark.parametrize("value", [5, None, "here", {"total": torch.zeros(2)}], ids=str)
def test_a_loop_position_of_0_1_that_is_no_table_is_refused(refused, saved, value):
    os.remove(os.path.join(saved, LOOP))
    edit_tensors(saved, RNG, put("loop", value=value))
    assert f"{RNG} is damaged" in refused()


@pytest.mark.parametrize("processes", [{}, [], [3], [{}]], ids=str)
def test_positions_that_are_not_a_list_of_tables_are_refused(refused, saved, processes):
    edit_json(saved, LOOP, processes=processes)
    assert f"{LOOP} is damaged" in refused()


def test_a_position_that_the_manifest_does_not_list_is_refused(make_trainer, saved):
    os.rename(os.path.join(saved, LOOP), os.path.join(saved, "aside"))
    manifest.write(saved, 2, 1)
    os.rename(os.path.join(saved, "aside"), os.path.join(saved, LOOP))
    assert "manifest.json is damaged" in manifest.fault(saved)


@pytest.mark.parametrize(("name", "value"), [("order_seed", HUGE), ("before_epoch", 3), ("python", (3, (1,), "x"))])
def test_generators_that_do_not_take_their_states_are_refused(refused, saved, name, value):
    edit_tensors(saved, RNG, put(name, value=value))
    assert f"{RNG} is damaged and cannot be read: a generator rejects its state" in refused()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("global_step", 1.5),
        ("epoch", HUGE),
        ("total_flos", float("inf")),
        ("best_metric", HUGE),
        ("total_flos", "\ud800"),
        ("trial_params", 3),
        ("is_hyper_param_search", "yes"),
        ("best_model_checkpoint", "a\0b"),
        ("log_history", [{"step": HUGE}]),
        ("log_history", [{"loss": HUGE}]),
        ("stateful_callbacks", {"TrainerControl": [5]}),
        ("stateful_callbacks", {"TrainerControl": {"args": [1], "attributes": {}}}),
    ],
    ids=lambda value: f"{value!s:.30}",
)
def test_a_state_with_a_value_of_the_wrong_kind_is_refused(refused, saved, name, value):
    edit_json(saved, **{name: value})
    message = refused()
    assert f"{STATE} is damaged" in message
    assert len(message) < 600


def test_a_state_with_the_name_of_a_method_is_resumed_from(make_trainer, saved):
    edit_json(saved, save_to_json=5, compute_steps=[], unknown={}, max_steps="many", eval_steps=[HUGE], save_steps={})
    assert make_trainer(max_steps=4).train(resume_from_checkpoint=saved).global_step == 4


def test_the_state_of_a_callback_that_its_class_does_not_take_is_refused(refused, saved):
    edit_json(saved, stateful_callbacks={"TrainerControl": {"args": {"unknown": 1}}})
    message = refused(restore_callback_states_from_checkpoint=True)
    assert f"{STATE} is damaged" in message
    assert "TrainerControl cannot load its state" in message


def test_a_pipe_or_folder_in_place_of_the_manifest_is_refused(refused, saved):
    path = os.path.join(saved, manifest.NAME)
    os.mkfifo(path)
    assert f"{manifest.NAME} is damaged" in refused()
    os.remove(path)
    os.mkdir(path)
    assert f"{manifest.NAME} is damaged" in refused()


@pytest.mark.parametrize("requested", [5, 0, ["a"], b"checkpoint-2", "", "a\0b", "x" * 5000, "\udcff"])
def test_what_no_folder_can_be_called_is_refused(make_trainer, requested):
    said = refusal(make_trainer(max_steps=1).train, resume_from_checkpoint=requested)
    assert re.search(r"which is not a folder|there is no such folder", said)
    assert "\0" not in said


@pytest.mark.parametrize(
    "change",
    [
        put("files", value={}),
        lambda content: content["files"].pop(STATE),
        lambda content: content["files"].pop(OPTIMIZER),
        lambda content: content["files"].pop(WEIGHTS),
        put("files", WEIGHTS, "size", value=-1),
        put("files", WEIGHTS, "sha256", value=[]),
        put("files", "../outside", value={"size": 0, "sha256": "0" * 64}),
        put("files", "a\0b", value={"size": 0, "sha256": "0" * 64}),
        put("written", value=float("nan")),
        put("step", value=[]),
        put("save", value=0),
    ],
    ids=range(11),
)
def test_a_tampered_manifest_makes_no_checkpoint_whole(make_checkpoint, tmp_path, change):
    older, newer = make_checkpoint(5), make_checkpoint(6)
    edit_json(newer, manifest.NAME, change)
    assert manifest.fault(str(newer)).startswith(f"{manifest.NAME} is damaged")
    assert requested_checkpoint(True, str(tmp_path)) == str(older)
