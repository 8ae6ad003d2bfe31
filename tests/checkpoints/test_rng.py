"""The files of the generators' states, of one process and of several."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from mps_trainer.checkpoints.loading import read_position
from mps_trainer.checkpoints.rng import read_rng, rng_file, rng_files, rng_state, set_rng
from mps_trainer.devices.accelerators import ACCELERATORS
from tests.conftest import messages_with, refusal


def save(folder, **files: int) -> None:
    """Writes states of generators, each after a seed of its own, into files."""
    for name, seed in files.items():
        torch.manual_seed(seed)
        torch.save(rng_state(), folder / f"{name}.pth")


def seed_of(state) -> int:
    torch.set_rng_state(state["cpu"])
    return torch.initial_seed()


@pytest.fixture(autouse=True)
def generators_as_before():
    before = rng_state()
    yield
    set_rng(before)


def test_one_process_has_one_file_and_several_have_one_each(tmp_path):
    assert rng_file(0, 1) == "rng_state.pth"
    assert [rng_file(rank, 3) for rank in range(3)] == ["rng_state_0.pth", "rng_state_1.pth", "rng_state_2.pth"]
    assert rng_files(str(tmp_path)) == ["rng_state.pth"]
    numbered = [f"rng_state_{rank}.pth" for rank in range(11)]
    for name in (*numbered, "rng_state.pth", "rng_state_x.pth", "rng_state_0.pth.tmp"):
        (tmp_path / name).touch()
    assert rng_files(str(tmp_path)) == numbered


@pytest.mark.parametrize(
    ("seeds", "size", "read", "warns"),
    [
        ([10, 11], 2, [10, 11], None),
        ([10, 11], 4, [10, 11, 10, 11], "was written by 2 processes, and this run has 4: "),
        ([10, 11], 1, [10], "was written by 2 processes, and this run has 1: "),
        ([12], 2, [12, 12], "was written by 1 process, and this run has 2: "),
    ],
)
def test_processes_share_the_states_and_the_first_one_warns(tmp_path, caplog, seeds, size, read, warns):
    save(tmp_path, **{rng_file(rank, len(seeds)).removesuffix(".pth"): seed for rank, seed in enumerate(seeds)})
    assert [seed_of(read_rng(str(tmp_path), rank, size)) for rank in range(size)] == read
    assert [(record.levelno, warns in record.getMessage()) for record in caplog.records] == (
        [] if warns is None else [(logging.WARNING, True)]
    )


@pytest.mark.parametrize("name", ["python", "numpy", "cpu"])
def test_a_state_that_is_missing_or_refused_is_damage_and_sets_nothing(tmp_path, name):
    for value in (None, "nothing", 3):
        state = rng_state()
        state[name] = value
        torch.save(state, tmp_path / "rng_state.pth")
        before = rng_state()
        assert "rng_state.pth" in refusal(read_rng, str(tmp_path))
        after = rng_state()
        assert after["python"] == before["python"]
        assert torch.equal(after["cpu"], before["cpu"])
    del state[name]
    torch.save(state, tmp_path / "rng_state.pth")
    assert "rng_state.pth" in refusal(read_rng, str(tmp_path))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"python": (3, (1,) * 625, "x")}, "Python's next number is not a number"),
        ({"numpy": ("MT19937", np.ones(624, np.uint32), 625, 0, 0.0)}, "NumPy's has no place among its numbers"),
        ({"numpy": ("MT19937", np.ones(624, np.uint32), -1, 0, 0.0)}, "NumPy's has no place among its numbers"),
        ({"numpy": ("MT19937", np.ones(623, np.uint32), 1, 0, 0.0)}, "NumPy's has no place among its numbers"),
        ({"numpy": ("PCG64", np.ones(624, np.uint32), 1, 0, 0.0)}, "NumPy's has no place among its numbers"),
    ],
)
def test_a_state_that_a_generator_would_fail_with_later_is_refused_now(tmp_path, change, why):
    path = tmp_path / "rng_state.pth"
    torch.save({**rng_state(), **change}, path)
    said = refusal(read_rng, str(tmp_path))
    assert f"{path} is damaged and cannot be read: a generator rejects its state: {why}." in said


class Generators:
    """Stands for torch's module of a kind of device with two devices, of which the second is this process's."""

    def __init__(self) -> None:
        self.states = [torch.zeros(3), torch.ones(3)]

    def current_device(self) -> int:
        return 1

    def get_rng_state(self) -> torch.Tensor:
        return self.states[self.current_device()].clone()

    def set_rng_state(self, state: torch.Tensor) -> None:
        self.states[self.current_device()] = state.clone()


@pytest.fixture(params=[kind for kind in ACCELERATORS if kind != "cpu"])
def found(request, monkeypatch):
    """Returns a kind of device and its generators, which torch finds on this machine."""
    generators = Generators()
    monkeypatch.setattr(ACCELERATORS[request.param], "torch_module", lambda: generators)
    return request.param, generators


def test_the_generator_of_each_kind_of_device_is_restored_from_a_checkpoint_of_that_kind(found, tmp_path):
    kind, generators = found
    set_rng({name: value for name, value in rng_state().items() if name != kind})
    assert torch.equal(generators.get_rng_state(), torch.ones(3))
    torch.save(rng_state(), tmp_path / "rng_state.pth")
    generators.set_rng_state(torch.full((3,), 7.0))
    set_rng(read_rng(str(tmp_path)))
    assert torch.equal(generators.get_rng_state(), torch.ones(3))
    assert kind in rng_state()


def test_a_state_of_a_device_that_is_not_found_is_ignored():
    before = rng_state()
    set_rng({**before, **{kind: "no state" for kind in ACCELERATORS if kind not in before}})
    assert torch.equal(torch.get_rng_state(), before["cpu"])


OF_ANOTHER_MACHINE = [torch.zeros(44, dtype=torch.uint8), [torch.zeros(16, dtype=torch.uint8)] * 8, [], 17, "text"]


@pytest.mark.parametrize("own", OF_ANOTHER_MACHINE, ids=lambda own: type(own).__name__)
@pytest.mark.parametrize("kind", ["mps", "cuda", "xpu", "npu", "xla"])
def test_states_of_devices_that_do_not_fit_this_machine_are_left_out_with_a_warning(tmp_path, caplog, mps, kind, own):
    state = {name: value for name, value in rng_state().items() if name != "mps"}
    before_epoch = {**state, kind: own, "musa": own}
    torch.save({**state, kind: own, "before_epoch": before_epoch, "before_waiting": None}, tmp_path / "rng_state.pth")
    on_device = torch.mps.get_rng_state()
    read = read_rng(str(tmp_path))
    assert read.keys() == {*state, "before_epoch", "before_waiting"}
    assert read["before_epoch"].keys() == state.keys()
    assert torch.equal(read["cpu"], state["cpu"])
    assert torch.equal(torch.mps.get_rng_state(), on_device)
    assert [message.partition(". They are left out")[0] for message in caplog.messages] == [
        f"{tmp_path / 'rng_state.pth'} has random states of {' and '.join(sorted([kind, 'musa']))} that this machine "
        "cannot set"
    ]


def test_states_of_other_devices_do_not_hide_damage(tmp_path):
    torch.save({**rng_state(), "npu": 3, "cpu": torch.zeros(7, dtype=torch.uint8)}, tmp_path / "rng_state.pth")
    assert "is damaged and cannot be read: a generator rejects its state" in refusal(read_rng, str(tmp_path))


@pytest.mark.parametrize("saved_on", ["cuda", "mps"])
def test_a_run_on_mps_resumes_with_random_states_of_another_machine(trained, mps, caplog, saved_on):
    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    folder = Path(trained(**settings).args.output_dir, "checkpoint-2")
    path = folder / "rng_state.pth"
    state = torch.load(path, weights_only=False)
    for each in (state, state["before_epoch"], state["before_waiting"]):
        if each is not None:
            del each["mps"]
            each[saved_on] = torch.zeros(44, dtype=torch.uint8)
    torch.save(state, path)
    for name in ("manifest.json", "loop_state.json"):  # as transformers writes it
        (folder / name).unlink()
    assert trained(resume=folder, **settings).state.global_step == 4
    assert len(messages_with(caplog, f"has random states of {saved_on} that this machine cannot set")) == 1


@pytest.mark.parametrize(("count", "taken"), [(2, 1), (1, 0)])
def test_several_processes_of_transformers_save_the_states_of_all_devices(tmp_path, found, count, taken):
    kind, generators = found
    all_devices = [torch.full((3,), 10.0 + number) for number in range(count)]
    torch.save({**rng_state(), kind: all_devices}, tmp_path / "rng_state_0.pth")
    set_rng(read_rng(str(tmp_path), 0, 1))
    assert torch.equal(generators.get_rng_state(), all_devices[taken])


def test_each_accelerator_gives_the_module_of_torch_where_torch_finds_a_device(monkeypatch):
    found_by = {"mps": torch.backends.mps, "cuda": torch.cuda, "xpu": torch.xpu}
    for kind, module in found_by.items():
        for is_there in (False, True):
            monkeypatch.setattr(module, "is_available", lambda answer=is_there: answer)
            expected = torch.get_device_module(kind) if is_there else None
            assert ACCELERATORS[kind].torch_module() is expected
    assert set(found_by) == {*ACCELERATORS} - {"cpu"}
    assert ACCELERATORS["cpu"].torch_module() is None


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
    place = {"epoch": 1, "batches": 2, "epoch_has_ended": False, "postponed": ["save"]}
    exact = {**position(0.1), "total": float("inf"), **place}
    assert read_position(write(exact), rank, size) == exact


def test_a_checkpoint_of_transformers_has_no_position_and_one_of_0_1_what_a_signal_postponed(tmp_path):
    assert read_position(str(tmp_path)) == {}
    torch.save(rng_state(), tmp_path / "rng_state.pth")
    assert read_position(str(tmp_path)) == {}
    saved = {"sum": 0.0, "total": 0.0, "first_step": 0, "last_read_step": 0, "due": ["evaluate"]}
    torch.save({**rng_state(), "loop": saved}, tmp_path / "rng_state.pth")
    assert read_position(str(tmp_path))["postponed"] == ["evaluate"]
