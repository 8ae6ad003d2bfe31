"""Writes a checkpoint in the background of training, from copies in the host's memory."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import torch

from ..utils.nested import map_plain_tensors, plain_tensors_in

_JOINED = 32 << 20  # bytes of small tensors that come over together: each copy waits for the device
_THREAD = "mps_trainer checkpoint"
T = TypeVar("T")


class Background(Generic[T]):
    """Runs one task at a time in a thread. An error of the task is raised when its result is requested.

    The thread ends with the process, whatever it is doing: what it writes must not matter until it is finished.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._result: T | None = None
        self._error: BaseException | None = None

    def start(self, work: Callable[[], T]) -> None:
        """Starts `work` after the previous task has ended."""
        self.wait()

        def run() -> None:
            try:
                self._result = work()
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, name=_THREAD, daemon=True)
        self._thread.start()

    def wait(self) -> T | None:
        """Waits until the task ends and returns its result, once.

        Raises:
            BaseException: what the task raised, once.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        result, error, self._result, self._error = self._result, self._error, None, None
        if error is not None:
            raise error
        return result

    def poll(self) -> T | None:
        """Returns the result of a finished task or raises its error; does not wait for a running one."""
        return self.wait() if self._thread is not None and not self._thread.is_alive() else None

    @staticmethod
    def wait_for_all() -> None:
        """Waits for all tasks of this process. An interrupted run leaves its task behind."""
        for thread in threading.enumerate():
            if thread.name == _THREAD:
                thread.join()


def on_host(value: Any) -> Any:
    """Returns `value` with a copy of each tensor on the host; tensors that share memory do so in the copy, too.

    Dictionaries, lists and tuples are gone through; anything else that they hold is taken as it is.
    """
    return _replaced(value, _copies(list({id(tensor): tensor for tensor in plain_tensors_in(value)}.values())))


def nbytes(value: Any) -> int:
    """Returns the bytes that `on_host(value)` would take."""
    storages = {_storage(tensor): tensor.untyped_storage() for tensor in plain_tensors_in(value)}
    return sum(storage.nbytes() for storage in storages.values())


def _replaced(value: Any, copies: dict[int, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return map_plain_tensors(value, lambda tensor: copies[id(tensor)])
    if isinstance(value, Mapping):
        return {key: _replaced(item, copies) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, copies) for item in value]
    if type(value) is tuple:
        return tuple(_replaced(item, copies) for item in value)
    return value


def _storage(tensor: torch.Tensor) -> tuple:
    return str(tensor.device), tensor.untyped_storage().data_ptr()


def _copies(tensors: list[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Returns the copy of each tensor by its id."""
    sharing: dict[tuple, list[torch.Tensor]] = defaultdict(list)
    for tensor in tensors:
        sharing[_storage(tensor) if tensor.numel() else (id(tensor),)].append(tensor)
    copies: dict[int, torch.Tensor] = {}
    joined: dict[torch.dtype, list[torch.Tensor]] = defaultdict(list)
    for group in sharing.values():
        alone = len(group) == 1 and group[0].is_contiguous()
        if alone and group[0].device.type != "cpu" and group[0].nbytes < _JOINED:
            joined[group[0].dtype].append(group[0])
        elif alone:
            copies[id(group[0])] = _copy(group[0])
        elif len({(each.dtype, each.storage_offset(), each.size(), each.stride()) for each in group}) == 1:
            # tied weights
            copies.update(dict.fromkeys(map(id, group), _copy(group[0])))
        else:
            copies.update(_with_storage(group))
    for same_type in joined.values():
        copies.update(_together(same_type))
    return copies


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.clone() if tensor.device.type == "cpu" else tensor.cpu()


def _with_storage(group: list[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Returns copies of tensors of one storage, in a copy of it."""
    storage = _copy(torch.empty(0, dtype=torch.uint8, device=group[0].device).set_(group[0].untyped_storage()))
    copies = {}
    for tensor in group:
        empty = torch.empty(0, dtype=tensor.dtype)
        copies[id(tensor)] = empty.set_(
            storage.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride()
        )
    return copies


def _together(tensors: list[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Returns copies of a device's tensors of one type, brought over in pieces of `_JOINED` bytes."""
    copies: dict[int, torch.Tensor] = {}
    while tensors:
        taken: list[torch.Tensor] = []
        size = 0
        while tensors and (not taken or size + tensors[-1].nbytes <= _JOINED):
            taken.append(tensors.pop())
            size += taken[-1].nbytes
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in taken]).cpu()
        for tensor, part in zip(taken, flat.split([tensor.numel() for tensor in taken]), strict=True):
            copies[id(tensor)] = part.clone().view(tensor.shape)
    return copies
