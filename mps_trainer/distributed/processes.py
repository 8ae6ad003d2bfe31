"""Exchanges values among the processes of a run, other than gradients."""

from __future__ import annotations

import functools
import pickle
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from ..errors import AnotherProcessFailedError, DifferentExchangesError, MisconfigurationException

T = TypeVar("T")
_WIDTH = 8  # an exchange has a multiple of this many numbers, so that different ones have equal sizes


@dataclass(eq=False)
class Processes:
    """Represents the processes that train together. With a single process, each collective returns its input.

    All processes have to call the same methods in the same order; otherwise sums and maxima raise
    DifferentExchangesError. Numbers are exchanged in host memory, so nothing waits for the device.

    Args:
        timeout: how long a process waits for the others; None for torch's default.
    """

    rank: int = 0
    size: int = 1
    timeout: timedelta | None = None

    @classmethod
    def of(cls, args: Any) -> Processes:
        """Returns the processes of training arguments; their process group exists from here on."""
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

    def waiting_shares(self, seconds: float) -> list[float]:
        """Returns how much of the last `seconds` each process waited for slower ones; [] if MLX does not exchange.

        The process with the least time in exchanges is the one that the others wait for. Counts anew from here.
        """
        mlx = sys.modules.get(f"{__package__}.mlx")
        if not self.is_distributed or mlx is None:
            return []
        spent = self.gather(mlx.take_seconds())
        return [(each - min(spent)) / seconds for each in spent] if seconds > 0 else []

    def gather(self, thing: T) -> list[T]:
        """Returns the values of all processes in the order of their ranks. Values are pickled.

        Raises:
            AnotherProcessFailedError: in the others, if a value of one cannot be pickled.
        """
        return self.all_do(lambda: thing)

    def first_does(self, work: Callable[[], T]) -> T:
        """Runs `work` in the first process and returns its result in all of them. Its error ends all of them.

        Raises:
            MisconfigurationException: in the others, with the message of the first one's.
            AnotherProcessFailedError: in the others, for anything else that the first one raises.
        """
        return self.all_do(work if self.is_first else lambda: None)[0]

    def all_do(self, work: Callable[[], Any]) -> list[Any]:
        """Runs `work` in all processes and returns the results of all. An error of one of them ends all of them.

        Raises:
            MisconfigurationException, AnotherProcessFailedError: in the others, as `first_does`.
        """
        if not self.is_distributed:
            return [work()]
        import torch.distributed as dist

        own, sent, error, failure = None, b"", None, None
        try:
            own = work()
            sent = pickle.dumps(own, pickle.HIGHEST_PROTOCOL)
        except BaseException as raised:
            error, is_refusal = raised, isinstance(raised, MisconfigurationException)
            failure = is_refusal, str(raised) if is_refusal else f"{type(raised).__name__}: {raised}"
        everybodys: list[Any] = [None] * self.size
        dist.all_gather_object(everybodys, (sent, failure), group=self.group)
        if error is not None:
            raise error
        for rank, (_, failure) in enumerate(everybodys):
            if failure is not None and failure[0]:
                raise MisconfigurationException(failure[1])
            if failure is not None:
                raise AnotherProcessFailedError(
                    f"Process {rank} has failed, so this one, process {self.rank}, ends too. {failure[1]}"
                )
        return [own if rank == self.rank else pickle.loads(result) for rank, (result, _) in enumerate(everybodys)]

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
                    f"This process exchanged the numbers of {place}, and another process the numbers of another line."
                )
            return found[2 : len(numbers) + 2]

        return result

    @functools.cached_property
    def group(self) -> Any:
        """The process group for tensors in host memory; None for the default one if its backend takes them."""
        import torch.distributed as dist

        return None if dist.get_backend() in ("gloo", "mlx") else dist.new_group(backend="gloo", timeout=self.timeout)
