"""Gets, sets and reads the states of all random number generators of a process, of every kind of device."""

from __future__ import annotations

import logging
import os
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ..devices.accelerators import ACCELERATORS
from .files import damaged, is_there
from .tensor_files import read_tensors

logger = logging.getLogger(__name__)

RNG = "rng_state.pth"  # the file of one process; of several, each has its own (see `rng_file`)
# Entries beside the generators' states, which `loop.position.Position` saves; transformers ignores them.
ORDER_SEED = "order_seed"  # the seed of the loader's order
BEFORE_EPOCH = "before_epoch"  # states before the epoch drew its order and its workers' seed
BEFORE_WAITING = "before_waiting"  # states before the batch ahead was loaded; None if no batch is loaded ahead
OF_LOADING = (ORDER_SEED, BEFORE_EPOCH, BEFORE_WAITING)
_OF_LOADER = "loader"  # states of the own generators of a loader that the user made
# Every other name in a file is a kind of device. Release 0.1 saved the position in training as "loop".
_NOT_A_DEVICE = ("python", "numpy", "cpu", "loop", _OF_LOADER, *OF_LOADING)


def generators_of(loader: Any) -> list[torch.Generator]:
    """Returns the generators that a loader and its sampler draw from instead of torch's global one."""
    samplers = getattr(loader, "sampler", None), getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    found = {id(each): each for owner in (loader, *samplers) for each in [getattr(owner, "generator", None)]}
    return [each for each in found.values() if isinstance(each, torch.Generator) and each.device.type == "cpu"]


def rng_state(generators: Sequence[torch.Generator] = ()) -> dict[str, Any]:
    """Returns the states of the generators of Python, NumPy, torch and its devices, in transformers' format."""
    return {
        **({_OF_LOADER: [each.get_state() for each in generators]} if generators else {}),
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "cpu": torch.get_rng_state(),
        **{kind: module.get_rng_state() for kind, module in _device_modules()},
    }


def set_rng(state: dict[str, Any], generators: Sequence[torch.Generator] = ()) -> None:
    """Sets the generators of this machine and of a loader to `state`."""
    for generator, own in zip(generators, state.get(_OF_LOADER, []), strict=False):
        generator.set_state(own)
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["cpu"])
    for kind, module in _device_modules():
        if kind in state:
            _set_device_rng(module, state[kind])


class RandomStatesOnly:
    """Stands for the position of a run in a checkpoint that is saved by hand: it has random states only."""

    def state_dict(self) -> dict[str, Any]:
        return {"rng": rng_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        set_rng(state_dict["rng"])


def _set_device_rng(module: Any, state: Any) -> None:
    if isinstance(state, list):  # several processes of transformers save the states of all devices
        state = state[module.current_device() % len(state)]
    module.set_rng_state(state)


def _device_modules() -> Iterator[tuple[str, Any]]:
    for kind, accelerator in ACCELERATORS.items():
        if (module := accelerator.torch_module()) is not None:
            yield kind, module


def _require_valid(state: dict[str, Any]) -> list[str]:
    """Raises an error if a generator of the host rejects its state, now or in a later draw.

    Only setting a generator shows this, so each is set and then restored, which takes less than a millisecond.

    Returns:
        The kinds of device whose states were removed from `state`, because this machine has no such device or its
        generator rejects them: generators of other devices and releases have another size.
    """
    before = rng_state()
    removed: set[str] = set()
    try:
        for each in (state, *(state[name] for name in (BEFORE_EPOCH, BEFORE_WAITING) if state.get(name) is not None)):
            following, (name, keys, place) = each["python"][2], each["numpy"][:3]
            if not (following is None or isinstance(following, float)):
                raise ValueError("Python's next number is not a number")
            if (name, len(keys)) != ("MT19937", 624) or not 0 <= place <= 624:
                raise ValueError("NumPy's has no place among its numbers")  # it would read past them
            removed.update(_remove_foreign_devices(each))
            set_rng(each, [torch.Generator() for _ in each.get(_OF_LOADER, [])])
        torch.Generator().manual_seed(state.get(ORDER_SEED, 0))
    finally:
        set_rng(before)
    return sorted(removed)


def _remove_foreign_devices(state: dict[str, Any]) -> list[str]:
    """Removes the states of devices that this machine cannot set. Returns their kinds."""
    here, removed = dict(_device_modules()), []
    for kind in [name for name in state if name not in _NOT_A_DEVICE]:
        try:
            _set_device_rng(here[kind], state[kind])
        except Exception:  # KeyError without such a device, or any error of its generator
            del state[kind]
            removed.append(kind)
    return removed


def _numpy_globals() -> list[Any]:
    """Returns the constructors, of plain data, that rebuild the array of NumPy's generator."""
    from numpy._core import multiarray

    return [multiarray._reconstruct, np.ndarray, np.dtype, type(np.dtype(np.uint32))]


# The files


def rng_file(rank: int, size: int) -> str:
    """Returns the name of the file of process `rank` of `size`."""
    return RNG if size == 1 else f"rng_state_{rank}.pth"


def rng_of_processes(states: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the random states of all processes by the names of their files."""
    return {rng_file(rank, len(states)): state for rank, state in enumerate(states)}


def rng_files(checkpoint: str) -> list[str]:
    """Returns the files of the generators, one for each process that wrote `checkpoint`."""
    several = [name for name in os.listdir(checkpoint) if re.fullmatch(r"rng_state_\d+\.pth", name)]
    return sorted(several, key=lambda name: (len(name), name)) or [rng_file(0, 1)]


def read_rng(checkpoint: str, rank: int = 0, size: int = 1) -> dict[str, Any] | None:
    """Returns the generators' states of process `rank` in `checkpoint`; None without such a file.

    Where another number of processes made it, this one continues with the generators of one of them.

    Raises:
        MisconfigurationException: for a damaged file.
    """
    files = rng_files(checkpoint)
    made_by, path = len(files), os.path.join(checkpoint, files[rank % len(files)])
    if not is_there(path):
        return None
    if made_by != size and rank == 0:
        logger.warning(
            "%s was written by %s, and this run has %d: weights, optimizer and step are restored, but random numbers "
            "such as dropout's differ. The epoch continues at the same batch, so examples repeat or are left "
            "out unless batch size x processes x gradient_accumulation_steps is as it was, and even then if "
            "train_sampling_strategy orders them by length.",
            checkpoint, "1 process" if made_by == 1 else f"{made_by} processes", size,
        )  # fmt: skip
    state, removed = _read_valid(path)
    if removed and rank == 0:
        logger.warning(
            "%s has random states of %s that this machine cannot set. They are left out, so random numbers that the "
            "device draws, such as for dropout, differ from an uninterrupted run.",
            path, " and ".join(removed),
        )  # fmt: skip
    return state


def read_positions(checkpoint: str) -> list[Any]:
    """Returns the positions that release 0.1 saved in the files of the generators; empty for another checkpoint."""
    paths = [os.path.join(checkpoint, name) for name in rng_files(checkpoint)]
    states = [_read_valid(path)[0] if is_there(path) else {} for path in paths]
    return [state["loop"] for state in states] if all("loop" in state for state in states) else []


def _read_valid(path: str) -> tuple[dict[str, Any], list[str]]:
    """Returns the states in a file, and the kinds of device whose states were left out."""
    state: dict[str, Any] = read_tensors(path, allowed=_numpy_globals())
    try:
        return state, _require_valid(state)
    except Exception as error:
        why = (
            f"{error.args[0]} is missing" if isinstance(error, KeyError) else f"a generator rejects its state: {error}"
        )
        raise damaged(path, ValueError(why)) from error
