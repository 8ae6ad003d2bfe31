"""A backend of torch.distributed over MLX's distributed engine, for mps and the CPU: `ddp_backend="mlx"`.

torch has no backend for mps. MLX, which Apple maintains, has two: `ring` over TCP and `jaccl` over Thunderbolt RDMA.

A thread runs the collectives in the order in which they were started, so that gradients are exchanged during the
backward pass. It never uses the device, because torch's mps stream is not made for several threads: the thread that
starts a collective copies to the host without a wait and records an event, and results are copied back by the thread
that waits for them, or at the end of the backward pass.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import torch
import torch.distributed as dist
from torch.futures import Future

from ..errors import MisconfigurationException
from ..utils.text import sentence
from . import mlx_ring

NAME = "mlx"
_CACHED = 256 << 20  # bytes of freed buffers that MLX may keep; by default it keeps as many as the machine has memory
_SHORT = 4096  # bytes; up to here an all-gather, which takes one round, and a sum on the host replace an all-reduce
_SUMMED = (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64)  # MLX would make float64 float32
_REDUCTIONS: dict[Any, tuple[str | None, Callable[..., torch.Tensor]]] = {
    dist.ReduceOp.SUM: ("all_sum", torch.sum),
    dist.ReduceOp.AVG: ("all_sum", torch.mean),
    dist.ReduceOp.MIN: ("all_min", torch.amin),
    dist.ReduceOp.MAX: ("all_max", torch.amax),
    dist.ReduceOp.PRODUCT: (None, torch.prod),
}
_Tensors = list[torch.Tensor]
# torch's declaration has only the calls of Python, and not those of DistributedDataParallel, which come from C++
_ProcessGroup: Any = object if TYPE_CHECKING else dist.ProcessGroup


class _Work(dist.Work):
    """A started collective: `run` in the thread of the engine, then `finish` in a thread that may use the device.

    Args:
        run: exchanges host memory.
        copy_back: copies the results to the device; None if they are where they belong.
        outputs: the value of the future.
    """

    def __init__(self, run: Callable[[], None], copy_back: Callable[[], None] | None, outputs: Any) -> None:
        super().__init__()
        self.run, self._copy_back, self._outputs = run, copy_back, outputs
        self.error: Exception | None = None
        self._has_run = threading.Event()
        self._done: Future = Future()
        self._future = self._done.then(lambda _: self._value())  # a callback can fail, a future of Python's cannot

    def finish(self) -> None:
        """Waits for the collective and copies its results to the device. Raises the error of the collective."""
        self._has_run.wait()
        if self.error is None and self._copy_back is not None:
            self._copy_back()
        self._copy_back = None
        self._complete()
        self._value()

    def wait(self, timeout: timedelta | None = None) -> bool:
        self.finish()
        return True

    def get_future(self) -> Future:
        return self._future

    def end_run(self, error: Exception | None) -> None:
        """Lets those who wait go on, or fail with `error`."""
        self.error = self.error or error
        self._has_run.set()
        if self._copy_back is None:
            self._complete()

    def _complete(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is complete
            self._done.set_result(None)

    def _value(self) -> Any:
        if self.error is not None:
            raise self.error
        return self._outputs


class Engine:
    """Runs this process's collectives in one thread, and fails them in another if one takes `timeout` seconds.

    MLX's collectives have no timeout. After a failure all further collectives fail, here and, because the connections
    are shut down, in the other processes.
    """

    def __init__(self, group: Any, sockets: Sequence[Any], timeout: float) -> None:
        self.group, self.timeout = group, timeout
        self.seconds = 0.0  # in collectives: transfer, and waiting for the other processes
        self._sockets = sockets
        self.queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._current: tuple[_Work, float] | None = None  # with the time of its start
        self.failure: Exception | None = None
        self._copied: list[tuple[Any, torch.Tensor]] = []  # host memory from which the device copies, with events
        self._thread = threading.Thread(target=self._work, name="mlx", daemon=True)
        self._thread.start()
        threading.Thread(target=self._watch, name="mlx timeout", daemon=True).start()
        atexit.register(self.close)

    def close(self) -> None:
        """Ends the thread, which must not be in torch's code when the interpreter ends."""
        self.queue.put(None)
        self._thread.join(5)

    def run(self, operation: str, tensor: torch.Tensor) -> torch.Tensor:
        """Runs a collective of MLX. The result is in memory of its own."""
        result = getattr(mx.distributed, operation)(mx.array(tensor), group=self.group, stream=mx.cpu)
        start = time.monotonic()
        mx.eval(result)
        self.seconds += time.monotonic() - start
        return torch.from_dlpack(result)

    def to_device(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copies without a wait, and keeps `source` until the device has read it (pytorch issue 189690)."""
        self._copied = [(event, kept) for event, kept in self._copied if not event.query()]
        target.copy_(source, non_blocking=True)
        self._copied.append((_recorded_event(), source))

    def _work(self) -> None:
        while (work := self.queue.get()) is not None:
            if self.failure is None:
                self._current = work, time.monotonic()
                try:
                    work.run()
                except Exception as error:  # before anybody goes on: the others would wait for this process
                    self._break(error)
                self._current = None
            work.end_run(self.failure)

    def _watch(self) -> None:
        while self.failure is None:
            time.sleep(min(1.0, self.timeout / 4))
            current = self._current
            if current is not None and time.monotonic() - current[1] > self.timeout:
                late = RuntimeError(f"[mlx] A collective took longer than ddp_timeout, {self.timeout:g} s.")
                current[0].end_run(late)
                self._break(late)

    def _break(self, error: Exception) -> None:
        self.failure = self.failure or error
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def _recorded_event() -> Any:
    event = torch.mps.Event()
    event.record()
    return event


class MLXProcessGroup(_ProcessGroup):
    """All processes of a run, with the collectives of DistributedDataParallel and of objects."""

    def __init__(self, rank: int, size: int, engine: Engine) -> None:
        super().__init__(rank, size)
        self._rank, self._size, self._engine = rank, size, engine

    def getBackendName(self) -> str:
        return NAME

    name = getBackendName

    def allreduce(self, tensors: _Tensors, opts: Any = None) -> _Work:
        operation = _operation(opts)
        return self._start(lambda host: self._reduce(host, operation), tensors, tensors, tensors)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: _Tensors, opts: Any) -> _Work:
        def spread(host: torch.Tensor) -> torch.Tensor:
            """Adds up the bits of the root's tensor and zeros: a ring has no broadcast."""
            bits = _bits(host)
            return self._engine.run("all_sum", bits if self._rank == opts.rootRank else torch.zeros_like(bits))

        return self._start(spread, tensors, tensors, tensors)

    def allgather(self, outputs: list[_Tensors], inputs: _Tensors, opts: Any = None) -> _Work:
        return self._start(self._gather, inputs, [each for group in outputs for each in group], outputs)

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> _Work:
        return self._start(self._gather, [given], [output], output)

    def reduce_scatter(self, outputs: _Tensors, inputs: list[_Tensors], opts: Any = None) -> _Work:
        operation, stacked = _operation(opts), [torch.stack(group) for group in inputs]
        return self._start(lambda host: self._reduce(host, operation)[self._rank], stacked, outputs, outputs)

    def reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> _Work:
        return self.reduce_scatter([output], [list(given.chunk(self._size))], opts)

    # names before torch 2.15
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single

    def barrier(self, opts: Any = None) -> _Work:
        return self.allreduce([torch.zeros(1)])

    def _start(
        self,
        exchange: Callable[[torch.Tensor], torch.Tensor],
        inputs: _Tensors,
        targets: _Tensors,
        outputs: Any,
    ) -> _Work:
        """Starts a collective.

        Args:
            exchange: takes one of the inputs, in host memory; returns the bits of its targets, one after the other.
            inputs: each with as many targets as the others.
        """
        if len({tensor.dtype for tensor in (*inputs, *targets)}) > 1:  # bits are exchanged
            raise ValueError("A collective over MLX has inputs and outputs of different dtypes. Convert one of them.")
        engine, count = self._engine, len(targets) // len(inputs)
        is_on_device = any(tensor.device.type != "cpu" for tensor in (*inputs, *targets))
        whole = torch.contiguous_format
        hosts = [each.detach().to("cpu", non_blocking=True, memory_format=whole).contiguous() for each in inputs]
        copied = _recorded_event() if is_on_device else None
        results: _Tensors = []

        def run() -> None:
            while copied is not None and not copied.query():  # synchronize() would keep the interpreter's lock
                time.sleep(1e-4)
            for host in hosts:
                results.extend(exchange(host).view(-1).view(torch.uint8).chunk(count))
            if copied is None:
                store()

        def store() -> None:
            copy = torch.Tensor.copy_ if copied is None else engine.to_device
            for target, result in zip(targets, results, strict=True):
                copy(target.detach(), result.view(target.dtype).view(target.shape))

        work = _Work(run, store if is_on_device else None, outputs)
        engine.queue.put(work)
        if is_on_device and torch._C._current_graph_task_id() != -1:  # in a backward pass
            torch.autograd.Variable._execution_engine.queue_callback(work.finish)
        return work

    def _reduce(self, host: torch.Tensor, given: Any) -> torch.Tensor:
        operation, on_host = _REDUCTIONS[given]
        if operation is None or host.dtype not in _SUMMED or host.nbytes <= _SHORT:
            return on_host(self._gather(host), dim=0).to(host.dtype)
        result = self._engine.run(operation, host)
        return result.div_(self._size) if given == dist.ReduceOp.AVG else result

    def _gather(self, host: torch.Tensor) -> torch.Tensor:
        """Returns the tensors of all processes, stacked."""
        gathered = self._engine.run("all_gather", _bits(host).unsqueeze(0))
        return gathered.view(-1).view(host.dtype).view(self._size, *host.shape)


def _operation(opts: Any) -> Any:
    """Returns torch's ReduceOp of a collective. Raises NotImplementedError for one that is not exchanged."""
    given = dist.ReduceOp.SUM if opts is None else getattr(opts.reduceOp, "op", opts.reduceOp)
    if given not in _REDUCTIONS:
        raise NotImplementedError(f"ddp_backend='mlx' has no {given}. Use SUM, AVG, MIN, MAX or PRODUCT.")
    return given


def _bits(host: torch.Tensor) -> torch.Tensor:
    """Returns a contiguous tensor as integers in one dimension."""
    if host.storage_offset() * host.element_size() % 8:
        host = host.clone()  # the type below has to follow from the size alone, which all processes share
    return host.view(-1).view(torch.int64 if host.nbytes % 8 == 0 else torch.uint8)


_engine: Engine | None = None  # MLX has one group in a process


def create(store: Any, rank: int, size: int, timeout: timedelta) -> MLXProcessGroup:
    """Returns the connected group of all processes; torch calls it.

    Raises:
        MisconfigurationException: for a group of some of the processes, if a process does not reach another, if
            their packages differ, or after a failure in this process.
    """
    global _engine
    if _engine is None:
        mx.set_cache_limit(_CACHED)
        _engine = Engine(*mlx_ring.connect(store, rank, size), timeout.total_seconds())
    elif _engine.failure is not None:
        raise MisconfigurationException(
            "MLX cannot connect the processes a second time: its connections were closed after an earlier failure "
            f"({sentence(_engine.failure, 200)}) Start the script again in all processes."
        )
    _engine.timeout = timeout.total_seconds()
    if _engine.group.size() != size:
        raise MisconfigurationException(
            f"ddp_backend='mlx' has one group, of all {_engine.group.size()} processes, and a group of {size} was "
            "asked for. Exchange with all processes, or train on the CPU with ddp_backend='gloo'."
        )
    return MLXProcessGroup(rank, size, _engine)


def take_seconds() -> float:
    """Returns the seconds of this process in collectives since the last call."""
    if _engine is None:
        return 0.0
    seconds, _engine.seconds = _engine.seconds, 0.0
    return seconds


if not hasattr(dist.Backend, NAME.upper()):
    dist.Backend.register_backend(NAME, create, devices=["cpu", "mps"])
