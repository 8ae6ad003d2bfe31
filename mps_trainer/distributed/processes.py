"""Exchanges values among the processes of a run, other than gradients."""

from __future__ import annotations

import functools
import pickle
import sys
import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..errors import AnotherProcessFailedError, DifferentExchangesError, MisconfigurationException

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
_WIDTH = 8  # numbers in an exchange, or a multiple of it


class Arguments(Protocol):
    """The arguments that `Processes.of` reads; those of training have them."""

    @property
    def device(self) -> torch.device: ...
    @property
    def process_index(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def ddp_timeout_delta(self) -> timedelta: ...


class Processes:
    """Represents the processes that train together. With a single process, each collective returns its input.

    Every method but those of one that is alone has to be called by all of them, in the same order. Sums and maxima
    raise DifferentExchangesError if they are not. Numbers travel through host memory: the device is not waited for.

    Args:
        rank: of this process, from 0.
        size: how many there are.
        timeout: how long one waits for the others; None for torch's own.
    """

    def __init__(self, rank: int = 0, size: int = 1, timeout: timedelta | None = None) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout

    @classmethod
    def of(cls, args: Arguments) -> Processes:
        """Returns those that the arguments name; their process group exists from here on."""
        _ = args.device
        return cls(args.process_index, args.world_size, args.ddp_timeout_delta)

    @property
    def is_distributed(self) -> bool:
        return self.size > 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def wait(self) -> None:
        """Waits until all processes reach this call."""
        if self.is_distributed:
            import torch.distributed as dist

            dist.barrier(group=self.group)

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Returns the sum over all processes of each of `numbers`; all processes pass equally many."""
        return self._reduced(numbers, "SUM")()

    def sum_later(self, numbers: Sequence[float]) -> Callable[[], list[float]]:
        """Starts `sum` and returns a function that waits for its result."""
        return self._reduced(numbers, "SUM")

    def all_reduce_max(self, numbers: Sequence[float]) -> list[float]:
        """Returns the maximum over all processes of each of `numbers`; all processes pass equally many."""
        return self._reduced(numbers, "MAX")()

    def all_reduce_max_later(self, numbers: Sequence[float]) -> Callable[[], list[float]]:
        """Starts `all_reduce_max` and returns a function that waits for its result."""
        return self._reduced(numbers, "MAX")

    def gather(self, thing: T) -> list[T]:
        """Returns the values of all processes in the order of their ranks. Values are pickled.

        Raises:
            AnotherProcessFailedError: in the others, if what one gives cannot be pickled.
        """
        if not self.is_distributed:
            return [thing]
        import torch.distributed as dist

        error, sent = None, b""
        try:
            sent = pickle.dumps(thing, pickle.HIGHEST_PROTOCOL)  # here, where the others hear of it if that fails
        except Exception as raised:
            error = raised
        why = None if error is None else f"{type(error).__name__}: {error}"
        everybodys: list[Any] = [None] * self.size
        dist.all_gather_object(everybodys, (sent, why), group=self.group)
        if error is not None:
            raise error
        for rank, (_, why) in enumerate(everybodys):
            if why is not None:
                raise AnotherProcessFailedError(_failed(rank, self.rank, why))
        return [thing if rank == self.rank else pickle.loads(given) for rank, (given, _) in enumerate(everybodys)]

    def first_does(self, work: Callable[[], T]) -> T:
        """Runs `work` in the first process and returns its result in all of them. Its error ends all of them.

        Raises:
            MisconfigurationException: in the others, with what the first one's says.
            AnotherProcessFailedError: in the others, for anything else that the first one raises.
        """
        if not self.is_distributed:
            return work()
        import torch.distributed as dist

        told: list[Any] = [None, None, None]
        if self.is_first:
            try:
                result = work()
                told[0] = pickle.dumps(result)  # here, where the others hear of it if that fails
            except MisconfigurationException as error:
                told[1] = str(error)
                raise
            except BaseException as error:
                told[2] = f"{type(error).__name__}: {error}"
                raise
            finally:
                dist.broadcast_object_list(told, src=0, group=self.group)
            return result
        dist.broadcast_object_list(told, src=0, group=self.group)
        if told[1] is not None:
            raise MisconfigurationException(told[1])
        if told[2] is not None:
            raise AnotherProcessFailedError(_failed(0, self.rank, told[2]))
        return pickle.loads(told[0])

    def _reduced(self, numbers: Sequence[float], operation: str) -> Callable[[], list[float]]:
        if not self.is_distributed:
            return lambda: list(numbers)
        import torch
        import torch.distributed as dist

        # torch matches exchanges by their order alone, and gloo aborts where the sizes differ
        caller = sys._getframe(2)
        place = f"{caller.f_code.co_filename}, line {caller.f_lineno}"
        mark = float(zlib.crc32(place.rpartition("mps_trainer")[2].encode()))
        expected = [sign * mark * (self.size if operation == "SUM" else 1) for sign in (1, -1)]
        filling = [0.0] * (-(len(numbers) + 2) % _WIDTH)
        everybodys = torch.tensor([mark, -mark, *numbers, *filling], dtype=torch.float64)
        work = dist.all_reduce(everybodys, getattr(dist.ReduceOp, operation), group=self.group, async_op=True)

        def result() -> list[float]:
            work.wait()
            found = everybodys.tolist()
            if found[:2] != expected:
                raise DifferentExchangesError(
                    f"This process exchanged the numbers of {place}, and another process those of another line."
                )
            return found[2 : len(numbers) + 2]

        return result

    @functools.cached_property
    def group(self) -> Any:
        """One that takes tensors in host memory; None for that of all, if it does."""
        import torch.distributed as dist

        return None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo", timeout=self.timeout)


def _failed(rank: int, own: int, why: str) -> str:
    return f"Process {rank} has failed, so this one, process {own}, ends too. {why}"
