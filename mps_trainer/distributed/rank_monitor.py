"""Names the processes that did not come to a collective, with the line of Python that each of them is in.

torch does not: a failed collective names a connection, `monitored_barrier` names ranks, only on process 0 and only to
processes that come to it, and torchrun names those that have ended. Here a thread in each process checks torch's store
once a second. After a failure it answers where its main thread is. The store works when the collectives do not.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from types import FrameType
from typing import Any

from ..errors import AnotherProcessFailedError, DifferentExchangesError, explain, explanation_of
from ..utils.text import sentence

EVERY = 1.0  # seconds between two looks at the store
PATIENCE = 5.0  # seconds that a process has to answer
# words of gloo, MLX, the store and nccl about a connection that failed
_SIGNS = (
    *("[ring]", "[jaccl]", "[mlx]", "gloo/", "gloo::", "ProcessGroupNCCL"),
    *("pair closure", "Wait timeout", "Operation timed out!", "by peer"),
)
# files in which the main thread is while it waits for others; gradients are exchanged in the backward pass
_WAITING = (
    *(os.path.join("torch", *path) for path in (("distributed", ""), ("nn", "parallel", "distributed.py"))),
    os.path.join("torch", "autograd", "graph.py"),
    *(os.path.join("mps_trainer", "distributed", name) for name in ("processes.py", "group.py", "mlx.py")),
)
# methods of the Trainer and its loop in which processes wait for each other; the first one that applies is named
_PURPOSES = {
    "_save_checkpoint": "a checkpoint",
    "evaluation_loop": "an evaluation",
    "get_batch_samples": "the batches of a step",
    "training_step": "the loss and gradients of a batch",
    "end_epoch": "the end of an epoch",
}

# torch writes this around the error of a collective that DistributedDataParallel waits for
_CALLBACK = re.compile(r"^Got the following error when running the callback: (\w+: )?|\s+At:\s.*$", re.DOTALL)

_own: RankMonitor | None = None  # this process's


class RankMonitor:
    """Answers once where this process is when another one asks, until this process leaves the group.

    Args:
        store: torch.distributed's store, through a connection that no other thread uses.
        names: the processes with pid and host, which are read early: the store may end with its process.
        keeper: the process that has the store: "process 0", with which it ends, or "torchrun".
    """

    def __init__(self, store: Any, rank: int, names: Sequence[str], keeper: str) -> None:
        self.store, self.rank, self.names, self.keeper = store, rank, names, keeper
        self._waits_for: str | None = None  # set once a collective has failed here
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._attend, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Announces that this process leaves the group, and stops answering."""
        self._ended.set()
        self._thread.join(4 * EVERY)

    def ask(self, waits_for: str) -> tuple[list[str], list[str]] | None:
        """Returns who stayed away, and who waits for what; None if the store does not answer."""
        self._waits_for = waits_for
        found: list[tuple[list[str], list[str]]] = []

        def ask() -> None:
            with contextlib.suppress(Exception):
                found.append(self._ask())

        asking = threading.Thread(target=ask, daemon=True)  # some questions to the store have no timeout
        asking.start()
        asking.join(PATIENCE + 2 * EVERY)
        return found[0] if found else None

    def _ask(self) -> tuple[list[str], list[str]]:
        self.store.set("asked", "")
        ranks, until = range(len(self.names)), time.monotonic() + PATIENCE
        while not all(map(self._has_answered, ranks)) and time.monotonic() < until:
            time.sleep(EVERY / 10)
        absent, waiting = [], []
        for rank, who in enumerate(self.names):
            if self._has_answered(rank):
                waits, place = json.loads(self.store.get(f"answer/{rank}"))
                waiting.append(f"{who} for {place}") if waits else absent.append(f"{who}: it is in {place}")
            elif self.store.check([f"gone/{rank}"]):
                absent.append(f"{who}: it has ended; its last output says why")
            else:
                absent.append(f"{who}: it does not answer, and is stopped, dead, or stuck outside of Python")
        return absent, waiting

    def _has_answered(self, rank: int) -> bool:
        return self.store.check([f"answer/{rank}"])

    def _attend(self) -> None:
        with contextlib.suppress(Exception):  # the store may end at any time
            while not self._ended.wait(EVERY) and not self.store.check(["closed"]):
                if self.store.check(["asked"]) and not self._has_answered(self.rank):
                    self.store.set(f"answer/{self.rank}", json.dumps(self._state()))
            if self._ended.is_set():
                self.store.set(f"gone/{self.rank}", "")
            left, until = self.store.add("left", 1), time.monotonic() + 3 * EVERY
            if self.keeper == f"process {self.rank}":  # torch prints an error if the store ends while others ask it
                self.store.set("closed", "")
                while left < len(self.names) and time.monotonic() < until:
                    time.sleep(EVERY / 20)
                    left = self.store.add("left", 0)

    def _state(self) -> tuple[bool, str]:
        """Returns True if the main thread waits for other processes, and for what; else where it is."""
        if self._waits_for is not None:
            return True, self._waits_for
        frame = sys._current_frames()[threading.main_thread().ident or 0]
        while frame.f_code.co_filename == threading.__file__ and frame.f_back is not None:
            frame = frame.f_back
        is_waiting = any(file in frame.f_code.co_filename for file in _WAITING)
        return is_waiting, _purpose(traceback.walk_stack(frame)) if is_waiting else _place(frame, frame.f_lineno)


def _purpose(calls: Iterable[tuple[FrameType, int]]) -> str:
    """Returns what a thread waits for, from its calls, the innermost first."""
    callers = [call for call in calls if not any(file in call[0].f_code.co_filename for file in _WAITING)]
    names = {frame.f_code.co_name for frame, _ in callers}
    purpose = next((purpose for name, purpose in _PURPOSES.items() if name in names), "others")
    return f"{purpose} in {_place(*callers[0])}" if callers else purpose


def _place(frame: FrameType, line: int) -> str:
    return f"{frame.f_code.co_name} ({frame.f_code.co_filename}, line {line})"


def attend(rank: int, size: int, restarts: int) -> None:
    """Starts to answer, if the process group has a store that can be asked."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    global _own
    with contextlib.suppress(Exception):  # without it, torch's own message remains
        store: Any = dist.PrefixStore(f"attendance-{restarts}", distributed_c10d._get_default_store().clone())
        store.set(f"who/{rank}", f"process {rank} (pid {os.getpid()} on {socket.gethostname()})")
        names = [_name(store, each) for each in range(size)]
        is_launchers = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        _own = RankMonitor(store, rank, names, "torchrun" if is_launchers else "process 0")


def _name(store: Any, rank: int) -> str:
    """Returns the process with its pid and host, or by its number alone if it was lost before it wrote them."""
    with contextlib.suppress(Exception):
        store.wait([f"who/{rank}"], timedelta(seconds=PATIENCE))
        return store.get(f"who/{rank}").decode()
    return f"process {rank}"


def leave() -> None:
    global _own
    if _own is not None:
        _own.end()
        _own = None


@contextlib.contextmanager
def absent_named(doing: str | Callable[[], str]) -> Iterator[None]:
    """Adds to the error of a failed collective inside which processes did not come, or what each of them waits for.

    Args:
        doing: words for what the others did not come to, or a function that returns them after a failure.
    """
    try:
        yield
    except Exception as error:
        if _own is not None and explanation_of(error) is None and _is_of_another(error):
            explanation = _explanation(_own, doing() if callable(doing) else doing, error)
            cause = RuntimeError(_CALLBACK.sub("", str(error)))
            explain(error, f"{explanation} ({sentence(cause if str(cause) else error, 200)})")
        raise


def _explanation(own: RankMonitor, doing: str, error: Exception) -> str:
    found = own.ask(_purpose(reversed(list(traceback.walk_tb(error.__traceback__)))))
    size = len(own.names)
    if found is None:
        keeper = own.names[0] if own.keeper == "process 0" else own.keeper
        return (
            f"Process {own.rank} of {size} waited in vain for another in {doing}, and {keeper}, which keeps the "
            f"list of processes, does not answer. Look whether {own.keeper} hangs, was stopped or has died."
        )
    absent, waiting = found
    again = "start again: a run with resume_from_checkpoint goes on from the last checkpoint."
    if absent:
        return (
            f"Of {size} processes, these did not come to {doing}: {'; '.join(absent)}. Find out what keeps them "
            f"(py-spy dump --pid PID), raise ddp_timeout if they need longer, or {again}"
        )
    return (
        f"The {size} processes wait for different things before {doing} can go on: {'; '.join(waiting)}. All have "
        "to make the same exchanges in the same order: a callback that stops, saves or evaluates has to do so in "
        f"every process, and all need the same arguments and as many batches. Correct what differs, and {again}"
    )


def _is_of_another(error: Exception) -> bool:
    """Returns True if the communication between processes failed, not a computation of this one."""
    import torch.distributed as dist

    if isinstance(error, (dist.DistNetworkError, dist.DistStoreError, DifferentExchangesError)):
        return True
    # an error that nccl itself finds, such as two processes on one GPU, is of this process
    has_sign = isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)
    return has_sign and not isinstance(error, AnotherProcessFailedError)
