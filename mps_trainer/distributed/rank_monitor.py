"""Names the processes that did not reach a collective when another one times out.

A collective that fails says which connection failed, not which process stayed away. Each process therefore has a
thread that asks the launcher's store, once a second, whether somebody misses anyone, and answers where its main thread
is. The exchange of tensors may be broken by then; the store is not.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import AnotherProcessFailedError, explain, explanation_of
from ..refusal import sentence

EVERY = 1.0  # seconds between two looks at the store
PATIENCE = 5.0  # seconds that a process has to answer
WAITS, WORKS = "waits", "works"
BACKWARD = "the backward pass"
ENDED = "it has ended; its last output says why"
# what gloo, the store and nccl say of one that is not there
_SIGNS = (
    "gloo/",
    "gloo::",
    "Application timeout caused pair closure",
    "Wait timeout",
    "Operation timed out!",
    "Connection closed by peer",
    "Connection reset by peer",
    "ProcessGroupNCCL",
)
# where one is that waits for others: in torch's collectives, a replica's exchange of buffers, or what calls them here
_COLLECTIVES = (
    os.path.join("torch", "distributed", ""),
    os.path.join("torch", "nn", "parallel", "distributed.py"),
    *(os.path.join("mps_trainer", "distributed", name) for name in ("processes.py", "group.py", "collectives.py")),
)
_BACKWARD = os.path.join("torch", "autograd", "graph.py")  # where gradients are computed, and exchanged as well

_own: RankMonitor | None = None


class RankMonitor:
    """Answers the questions of other processes until this process leaves the group.

    Args:
        store: of torch.distributed, that all processes reach, by a connection of its own.
        rank: of this process.
        size: how many there are.
        keeper: whose the store is: "process 0", with which it ends, or "torchrun".
    """

    def __init__(self, store: Any, rank: int, size: int, keeper: str) -> None:
        self.store, self.rank, self.size, self.keeper = store, rank, size, keeper
        self._has_waited = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._attend, name="attendance", daemon=True)

    def begin(self) -> None:
        self.store.set(f"who/{self.rank}", f"pid {os.getpid()} on {socket.gethostname()}")
        self._thread.start()

    def end(self) -> None:
        """Announces that this process leaves the group, and stops asking others."""
        self._ended.set()
        self._thread.join(4 * EVERY)  # a store that does not answer keeps the thread, and nobody else

    def absent(self) -> dict[int, str] | None:
        """Returns a sentence for each process that the others wait for; None if the store does not answer."""
        self._has_waited = True
        found: list[dict[int, str]] = []

        def ask() -> None:
            with contextlib.suppress(Exception):
                found.append(self._absent())

        asking = threading.Thread(target=ask, daemon=True)  # some questions to the store know no timeout
        asking.start()
        asking.join(PATIENCE + 2 * EVERY)
        return found[0] if found else None

    def _absent(self) -> dict[int, str]:
        answers = self._asked()
        silent = set(range(self.size)) - set(answers)
        found = {rank: f"{self._who(rank)}: {self._silence(rank)}" for rank in silent}
        at_work = {rank: place for rank, (state, place) in answers.items() if state == WORKS}
        # the backward pass waits as well, so that one in it is only blamed if there is no other
        elsewhere = {rank: place for rank, place in at_work.items() if place != BACKWARD}
        if not found or elsewhere:
            found |= {rank: f"{self._who(rank)}: it is in {place}" for rank, place in (elsewhere or at_work).items()}
        return dict(sorted(found.items()))

    def _asked(self) -> dict[int, tuple[str, str]]:
        """Returns the answers of the processes that give one."""
        number = self.store.add("asked", 1)
        answers: dict[int, tuple[str, str]] = {}
        until = time.monotonic() + PATIENCE
        while len(answers) < self.size and time.monotonic() < until:
            for rank in range(self.size):
                if rank not in answers and self.store.check([f"answer/{number}/{rank}"]):
                    answers[rank] = json.loads(self.store.get(f"answer/{number}/{rank}"))
            time.sleep(EVERY / 10)
        return answers

    def _who(self, rank: int) -> str:
        known = self.store.check([f"who/{rank}"])
        return f"process {rank}" + (f" ({self.store.get(f'who/{rank}').decode()})" if known else "")

    def _silence(self, rank: int) -> str:
        if self.store.check([f"gone/{rank}"]):
            return ENDED
        return "it does not answer, and is stopped, dead, or stuck outside of Python"

    def _attend(self) -> None:
        with contextlib.suppress(Exception):  # whoever keeps the store may end at any time
            self._answer()
            self.store.set(f"{'gone' if self._ended.is_set() else 'heard'}/{self.rank}", "")
            if self.keeper == f"process {self.rank}":
                self._let_others_end()

    def _answer(self) -> None:
        answered = 0
        while not self._ended.wait(EVERY) and not self.store.check(["closed"]):
            asked = self.store.add("asked", 0)
            for number in range(answered + 1, asked + 1):
                self.store.set(f"answer/{number}/{self.rank}", json.dumps(self._state()))
            answered = asked

    def _let_others_end(self) -> None:
        """Waits for the others, because torch prints an error about a store that goes away while it is asked."""
        self.store.set("closed", "")
        until = time.monotonic() + 3 * EVERY

        def has_left(rank: int) -> bool:
            return any(self.store.check([f"{how}/{rank}"]) for how in ("gone", "heard"))

        while not all(map(has_left, range(self.size))) and time.monotonic() < until:
            time.sleep(EVERY / 20)

    def _state(self) -> tuple[str, str]:
        if self._has_waited:
            return WAITS, ""
        main = threading.main_thread().ident
        frame = None if main is None else sys._current_frames().get(main)
        if frame is None:
            return WORKS, "no known line of Python"
        path = frame.f_code.co_filename
        if any(folder in path for folder in _COLLECTIVES):
            return WAITS, ""
        if path.endswith(_BACKWARD):
            return WORKS, BACKWARD
        return WORKS, f"{frame.f_code.co_name} ({path}, line {frame.f_lineno})"


def attend(rank: int, size: int, restarts: int) -> None:
    """Answers from now on, if the process group has a store that can be asked."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    global _own
    with contextlib.suppress(Exception):  # without it, a failure is told as torch tells it
        # a connection of its own: on another thread's, a question that waits would keep this one from answering
        store: Any = distributed_c10d._get_default_store()
        own = dist.PrefixStore(f"attendance-{restarts}", store.clone())
        is_launchers = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        attending = RankMonitor(own, rank, size, "torchrun" if is_launchers else "process 0")
        attending.begin()
        _own = attending


def leave() -> None:
    global _own
    if _own is not None:
        _own.end()
        _own = None


@contextlib.contextmanager
def absent_named(doing: str | Callable[[], str]) -> Iterator[None]:
    """Adds to a timeout error inside the names of the processes that did not arrive.

    Args:
        doing: what the others did not come to, as words, or what gives them when it has happened.
    """
    try:
        yield
    except Exception as error:
        if _own is not None and explanation_of(error) is None and _is_of_another(error):
            explain(error, f"{_said(_own, doing() if callable(doing) else doing)} (torch: {sentence(error, 200)})")
        raise


def _said(own: RankMonitor, doing: str) -> str:
    absent = own.absent()
    if absent is None:
        return (
            f"Process {own.rank} of {own.size} waited in vain for another in {doing}, and {own.keeper}, which keeps "
            f"what could tell which one, does not answer. Look whether {own.keeper} hangs, was stopped or has died."
        )
    if not absent:
        return (
            f"All {own.size} processes are in {doing}, and a connection between them broke. Check the network; "
            "GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names the interface to use."
        )
    told = f"Of {own.size} processes, these did not come to {doing}: {'; '.join(absent.values())}."
    on = "start again: a run with resume_from_checkpoint goes on from the last checkpoint."
    if all(said.endswith(ENDED) for said in absent.values()):
        return f"{told} Fix that, and {on}"
    keeps = "Find out what keeps them there (py-spy dump --pid PID), raise ddp_timeout if they need longer, or"
    return f"{told} {keeps} {on}"


def _is_of_another(error: Exception) -> bool:
    """Returns True if the communication between processes failed, not a computation of this one."""
    import torch.distributed as dist

    if isinstance(error, (dist.DistNetworkError, dist.DistStoreError)):
        return True
    # what nccl itself finds wrong, such as two processes on one GPU, is of this one
    has_sign = isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)
    return has_sign and not isinstance(error, AnotherProcessFailedError)
